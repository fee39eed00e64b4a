"""An Agent that reviews changes of a git repository on its own Computer: it reads them, lints them and runs their tests."""

from pathlib import Path

from helmr import AgentContext, InitContext, Turn, agent, image, json_part, plain_schema, source, template, text

from review import checks, git, report, workspace

CARRIED = Path("/opt/reviewer/repo")
"""Where the image puts the project's folder `repo`."""

computer = template(
    id="reviewer",
    image=image("reviewer").from_host().pip_install("ruff", "pytest").copy(str(CARRIED), source.directory("repo")),
    resources={"cpu": 1, "memory": "1GiB"},
)


async def prepare(ctx: InitContext) -> workspace.Workspace:
    """Once per Session process: the repository lies in the working directory, and the tools are known."""
    return await workspace.prepare(Path.cwd() / "repo", CARRIED)


@agent(id="reviewer", template=computer, init=prepare, result_schema=plain_schema(report.Review), max_turn_duration="15m")
async def reviewer(turn: Turn, ctx: AgentContext[workspace.Workspace]) -> report.Review:
    """Each Turn takes a range of revisions as text, such as `HEAD~3..HEAD`; a single revision is reviewed against its parent."""
    repository = ctx.init_result.repository
    asked = "".join(part["text"] for part in turn.input).strip()
    try:
        change = await git.read_change(repository, asked)
    except git.GitFailed as problem:
        await turn.respond(f"I can't review {asked!r}: {problem}")
        return report.Review(range=asked, verdict="unreadable", problem=str(problem))
    await turn.output.write(f"Reviewing {change.range}\n")
    for commit in change.commits:
        await turn.output.write(f"  {commit.short} {commit.subject}\n")

    async with git.checked_out(repository, change.head) as tree:
        findings = await checks.lint(tree, change)
        for finding in findings:
            await turn.output.write(f"{finding.file}:{finding.line}: {finding.code} {finding.message}\n")
        runs: list[report.TestRun] = []
        for file in checks.test_files(tree, change):
            run = await checks.run_tests(tree, file)
            runs.append(run)
            await turn.output.write(f"{file}: {run.outcome.replace('_', ' ')} in {run.seconds:.1f} s\n")

    review = report.summarize(change, findings, runs)
    await turn.respond([text(report.as_text(review)), json_part(report.as_json(review))])
    return review
