"""An Agent that asks before it acts: it writes a release into a changelog when a person has said what, and said yes."""

from pathlib import Path

from helmr import AgentContext, Turn, agent, ask_choice, ask_text, image, template

computer = template(id="release", image=image("release").from_host(), resources={"memory": "128MiB"})

CHANGELOG = Path("/workspace/CHANGELOG.md")


@agent(id="release", template=computer)
async def release(turn: Turn, ctx: AgentContext) -> dict[str, str | bool]:
    """The input is the version to go on from. A question that is cancelled raises, so nothing is written without an answer."""
    current = "".join(part["text"] for part in turn.input).strip()
    major, minor, patch = (int(number) for number in current.split("."))
    version = await ask_choice(
        turn,
        f"The last release is {current}. What comes next?",
        {
            f"patch, {major}.{minor}.{patch + 1}": f"{major}.{minor}.{patch + 1}",
            f"minor, {major}.{minor + 1}.0": f"{major}.{minor + 1}.0",
            f"major, {major + 1}.0.0": f"{major + 1}.0.0",
        },
    )
    note = await ask_text(turn, f"What is new in {version}?")
    entry = f"## {version}\n\n{note}\n"
    await turn.output.write(entry)
    if not await ask_choice(turn, f"Write this into {CHANGELOG}?", {"Yes, write it": True, "No": False}):
        await turn.respond("Nothing was written.")
        return {"version": version, "written": False}
    whole = add(entry)
    await turn.respond(f"{version} is in the changelog.")
    return {"version": version, "written": True, "changelog": whole}


def add(entry: str) -> str:
    """Append to the changelog; gives all of it."""
    with CHANGELOG.open("a+", encoding="utf-8") as file:
        file.write(entry)
        file.seek(0)
        return file.read()
