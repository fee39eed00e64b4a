"""The `helmr` command: its tree of commands, and what each failure becomes. SPEC 13, UD-100."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from helmr.cli.exits import INTERRUPTED, USAGE
from helmr.cli.lazy import Entry, LazyGroup

_TURN = {
    "list": Entry("helmr.cli.turn:list_", "List the Turns of a Session."),
    "get": Entry("helmr.cli.turn:get", "Show a Turn."),
    "wait": Entry("helmr.cli.turn:wait", "Wait until a Turn has ended."),
    "send": Entry("helmr.cli.turn:send", "Send a message to exactly one running Turn."),
    "interrupt": Entry("helmr.cli.turn:interrupt", "Interrupt a running Turn, without a hold."),
}

_SESSION = {
    "create": Entry("helmr.cli.session:create", "Create a Session, with its first Turn when there is input."),
    "list": Entry("helmr.cli.session:list_", "List Sessions."),
    "get": Entry("helmr.cli.session:get", "Show a Session, its holds included."),
    "enqueue": Entry("helmr.cli.session:enqueue", "Admit a new Turn at the end of the queue."),
    "events": Entry("helmr.cli.timeline:events", "List or follow the timeline."),
    "watch": Entry("helmr.cli.timeline:watch", "Show a Turn live until it ends."),
    "why": Entry("helmr.cli.session:why", "Say why a Session does what it does now."),
    "interrupt": Entry("helmr.cli.controls:interrupt", "Stop the running Turn and hold the Session."),
    "resume": Entry("helmr.cli.controls:resume", "Release one hold."),
    "close": Entry("helmr.cli.controls:close", "Close when the work is done."),
    "cancel": Entry("helmr.cli.controls:cancel", "Cancel all work and close now."),
    "delete-data": Entry("helmr.cli.controls:delete_data", "Expire what was said in a closed Session."),
    "turn": Entry("helmr.cli.main:turn", "One Turn of a Session."),
}

_AGENT = {
    "list": Entry("helmr.cli.agent:list_", "List Agents."),
    "get": Entry("helmr.cli.agent:get", "Show an Agent's input and policy."),
}

_QUESTION = {
    "list": Entry("helmr.cli.question:list_", "List what waits for an answer."),
    "get": Entry("helmr.cli.question:get", "Show a question, and its answer once there is one."),
    "answer": Entry("helmr.cli.question:answer", "Answer a question; the first answer stands."),
}

_COMPUTER = {
    "create": Entry("helmr.cli.computer:create", "Make a Computer that stays until it is deleted."),
    "list": Entry("helmr.cli.computer:list_", "List Computers."),
    "get": Entry("helmr.cli.computer:get", "Show a Computer."),
    "members": Entry("helmr.cli.computer:members", "List the Sessions of a Computer."),
    "hibernate": Entry("helmr.cli.computer:hibernate", "Put a Computer to sleep."),
    "wake": Entry("helmr.cli.computer:wake", "Have a Computer run."),
    "recover": Entry("helmr.cli.computer:recover", "Try a Computer again that failed."),
    "save": Entry("helmr.cli.computer:save", "Save a Computer's files now."),
    "saves": Entry("helmr.cli.computer:saves", "List the saves of a Computer."),
    "delete": Entry("helmr.cli.computer:delete", "Delete a Computer with all its files."),
    "exec": Entry("helmr.cli.command:execute", "Run a program on a Computer."),
    "shell": Entry("helmr.cli.shell:shell", "Open a shell on a Computer."),
    "cp": Entry("helmr.cli.copy:cp", "Copy files to and from a Computer."),
    "forward": Entry("helmr.cli.forward:forward", "Reach ports of a Computer on this machine."),
    "logs": Entry("helmr.cli.command:logs", "Show what a Command has written."),
}

_DEPLOYMENT = {
    "list": Entry("helmr.cli.deployment:list_", "List Deployments."),
    "get": Entry("helmr.cli.deployment:get", "Show a Deployment, or the current one."),
    "diff": Entry("helmr.cli.deployment:diff", "Show what one Deployment has otherwise than another."),
    "promote": Entry("helmr.cli.deployment:promote", "Make a Deployment the current one."),
}

_KEY = {
    "list": Entry("helmr.cli.key:list_", "List API keys."),
    "get": Entry("helmr.cli.key:get", "Show what an API key may."),
    "create": Entry("helmr.cli.key:create", "Make an API key."),
    "rotate": Entry("helmr.cli.key:rotate", "Put a new API key in the place of one."),
    "revoke": Entry("helmr.cli.key:revoke", "Have an API key taken no more."),
}

_PROJECT = {
    "list": Entry("helmr.cli.environment:list_projects", "List projects."),
    "create": Entry("helmr.cli.environment:create_project", "Make a project."),
}

_ENVIRONMENT = {
    "list": Entry("helmr.cli.environment:list_", "List Environments."),
    "get": Entry("helmr.cli.environment:get", "Show what an Environment allows."),
    "create": Entry("helmr.cli.environment:create", "Make an Environment of a project."),
    "limit": Entry("helmr.cli.environment:limit", "Set limits of an Environment."),
}

_MEMBER = {
    "list": Entry("helmr.cli.member:list_", "List members."),
    "get": Entry("helmr.cli.member:get", "Show a member."),
    "add": Entry("helmr.cli.member:add", "Add a member."),
    "password-link": Entry("helmr.cli.member:password_link", "Make a link by which a member sets a new password."),
    "change": Entry("helmr.cli.member:change", "Give a member another role, or shut them out."),
    "remove": Entry("helmr.cli.member:remove", "Remove a member."),
}

_AUDIT = {
    "list": Entry("helmr.cli.audit:list_", "List who wrote what in the Environment."),
    "installation": Entry("helmr.cli.audit:installation", "List sign-ins, and changes of the installation."),
}

_SECRET = {
    "list": Entry("helmr.cli.secret:list_", "List Secrets."),
    "get": Entry("helmr.cli.secret:get", "Show a Secret's versions, and where it is bound."),
    "create": Entry("helmr.cli.secret:create", "Make a Secret."),
    "rotate": Entry("helmr.cli.secret:rotate", "Give a Secret a new value."),
    "revoke": Entry("helmr.cli.secret:revoke", "Revoke a Secret for good."),
}

_SERVER = {
    "rotate-master-key": Entry("helmr.cli.masterkey:rotate_master_key", "Renew the master key, step by step."),
}

_TRIGGER = {
    "list": Entry("helmr.cli.trigger:list_", "List triggers, with their next fires."),
    "get": Entry("helmr.cli.trigger:get", "Show a trigger and its next five fires."),
}

_ROOT = {
    "init": Entry("helmr.cli.project:init", "Write a project that runs."),
    "dev": Entry("helmr.cli.local:dev", "Run everything here around a project, and republish it on change."),
    "doctor": Entry("helmr.cli.doctor:doctor", "Try what this machine can do, and say what is missing."),
    "deploy": Entry("helmr.cli.deployment:deploy", "Publish a project."),
    "agent": Entry("helmr.cli.main:agent", "What a Deployment publishes."),
    "session": Entry("helmr.cli.main:session", "Conversations with Agents."),
    "question": Entry("helmr.cli.main:question", "What Sessions ask people."),
    "computer": Entry("helmr.cli.main:computer", "What Sessions run on."),
    "deployment": Entry("helmr.cli.main:deployment", "Published versions of a project."),
    "key": Entry("helmr.cli.main:key", "API keys: what programs may."),
    "project": Entry("helmr.cli.main:project", "What Environments belong to."),
    "env": Entry("helmr.cli.main:env", "Environments, and what they allow."),
    "member": Entry("helmr.cli.main:member", "People: who may come in, and what they may."),
    "audit": Entry("helmr.cli.main:audit", "Who wrote what."),
    "secret": Entry("helmr.cli.main:secret", "Values that Computers get and nobody can read."),
    "trigger": Entry("helmr.cli.main:trigger", "When Agents start by themselves."),
    "serve": Entry("helmr.cli.local:serve", "Run a control plane."),
    "server": Entry("helmr.cli.main:server", "Look after a control plane's installation."),
    "worker": Entry("helmr.cli.local:worker", "Run a worker on this host, or look after those that there are."),
    "hostd": Entry("helmr.cli.hostd:hostd", "Run the host daemon apart from its worker."),
    "login": Entry("helmr.cli.login:login", "Sign in at a server."),
    "logout": Entry("helmr.cli.login:logout", "Sign out, and forget the server."),
    "whoami": Entry("helmr.cli.login:whoami", "Show which server is used, and as whom."),
    "completion": Entry("helmr.cli.completion:completion", "Print the completion script of a shell."),
}

turn = LazyGroup("turn", entries=_TURN, help="One Turn of a Session.")
session = LazyGroup("session", entries=_SESSION, help="Conversations with Agents.")
agent = LazyGroup("agent", entries=_AGENT, help="What a Deployment publishes.")
question = LazyGroup("question", entries=_QUESTION, help="What Sessions ask people.")
computer = LazyGroup("computer", entries=_COMPUTER, help="What Sessions run on.")
key = LazyGroup("key", entries=_KEY, help="API keys: what programs may.")
project = LazyGroup("project", entries=_PROJECT, help="What Environments belong to.")
env = LazyGroup("env", entries=_ENVIRONMENT, help="Environments, and what they allow.")
member = LazyGroup("member", entries=_MEMBER, help="People: who may come in, and what they may.")
audit = LazyGroup("audit", entries=_AUDIT, help="Who wrote what.")
secret = LazyGroup("secret", entries=_SECRET, help="Values that Computers get and nobody can read.")
server = LazyGroup("server", entries=_SERVER, help="Look after a control plane's installation.")
deployment = LazyGroup("deployment", entries=_DEPLOYMENT, help="Published versions of a project.")
trigger = LazyGroup("trigger", entries=_TRIGGER, help="When Agents start by themselves.")


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"helmr {version('helmr')}")
        context.exit()


root = LazyGroup(
    "helmr",
    entries=_ROOT,
    help="""Durable Sessions of coding agents on isolated, persistent Computers.

    Exit codes: 0 done, 1 refused, 2 usage, 3 not found, 4 try again, 5 the Turn did not complete, 124 waiting timed out.
    """,
    params=[click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")],
)


def main() -> NoReturn:
    """The entry point of the `helmr` script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code. What is no `HelmrError` is a fault of ours and keeps its traceback."""
    from helmr.protocol.errors import HelmrError

    as_json = any(argument in ("--json", "--jsonl") for argument in _before_separator(arguments))
    try:
        code = root.main(args=list(arguments), prog_name="helmr", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        return USAGE
    except (click.ClickException, HelmrError, OSError) as error:
        from helmr.cli.failures import report

        return report(error, as_json=as_json)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _before_separator(arguments: Sequence[str]) -> Sequence[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments
