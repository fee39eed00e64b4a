"""The client: Sessions, Turns, timelines and Deployments over HTTP, asynchronously. `helmr.sync` is the same, blocking."""

from helmr.client.agents import Agents
from helmr.client.api_keys import ApiKeys
from helmr.client.asks import TurnAsks
from helmr.client.audit import Audit
from helmr.client.client import HelmrClient
from helmr.client.commands import CommandOutput, CommandRef, Commands
from helmr.client.computers import Computers
from helmr.client.contract import JsonInput
from helmr.client.deployments import Deployments
from helmr.client.environments import Environments, Projects
from helmr.client.event_stream import EventStream
from helmr.client.members import Members
from helmr.client.outcome import (
    CancelledTurn,
    CompletedTurn,
    ExpiredTurn,
    FailedTurn,
    InterruptedTurn,
    TimedTurnWaitResult,
    TurnOutcome,
    TurnSettled,
    TurnWaitTimeout,
)
from helmr.client.questions import Questions
from helmr.client.retry import RetryPolicy
from helmr.client.secrets import Secrets
from helmr.client.session_ref import SessionEvents, SessionRef, SessionTurns
from helmr.client.sessions import ComputerChoice, SessionCreateReceipt, Sessions, SlackRoute
from helmr.client.streams import ComputerStream, Shell
from helmr.client.triggers import Triggers
from helmr.client.turn_ref import TurnRef
from helmr.client.workers import Workers
from helmr.protocol.audit_shapes import AuditEntry, AuditPage, InstallationEntry, InstallationLogPage
from helmr.protocol.commands import Command
from helmr.protocol.key_shapes import ApiKey, ApiKeyPage, NewApiKey
from helmr.protocol.questions import Answer, choice_answer, text_answer
from helmr.protocol.secret_shapes import Secret, SecretDetails, SecretPage
from helmr.protocol.shapes import (
    Computer,
    ComputerCreateReceipt,
    ComputerPage,
    ComputerReceipt,
    QuestionPage,
    QuestionReceipt,
    QuestionState,
)
from helmr.protocol.triggers import Firing, TriggerInfo, TriggerPage
from helmr.protocol.worker_shapes import NewWorkerEnrolment, Worker, WorkerDetails, WorkerEnrolment, WorkerEnrolmentPage, WorkerPage

__all__ = [
    "Agents",
    "Answer",
    "ApiKey",
    "ApiKeyPage",
    "ApiKeys",
    "Audit",
    "AuditEntry",
    "AuditPage",
    "CancelledTurn",
    "Command",
    "CommandOutput",
    "CommandRef",
    "Commands",
    "CompletedTurn",
    "Computer",
    "ComputerChoice",
    "ComputerCreateReceipt",
    "ComputerPage",
    "ComputerReceipt",
    "ComputerStream",
    "Computers",
    "Deployments",
    "Environments",
    "EventStream",
    "ExpiredTurn",
    "FailedTurn",
    "Firing",
    "HelmrClient",
    "InstallationEntry",
    "InstallationLogPage",
    "InterruptedTurn",
    "JsonInput",
    "Members",
    "NewApiKey",
    "NewWorkerEnrolment",
    "Projects",
    "QuestionPage",
    "QuestionReceipt",
    "QuestionState",
    "Questions",
    "RetryPolicy",
    "Secret",
    "SecretDetails",
    "SecretPage",
    "Secrets",
    "SessionCreateReceipt",
    "SessionEvents",
    "SessionRef",
    "SessionTurns",
    "Sessions",
    "Shell",
    "SlackRoute",
    "TimedTurnWaitResult",
    "TriggerInfo",
    "TriggerPage",
    "Triggers",
    "TurnAsks",
    "TurnOutcome",
    "TurnRef",
    "TurnSettled",
    "TurnWaitTimeout",
    "Worker",
    "WorkerDetails",
    "WorkerEnrolment",
    "WorkerEnrolmentPage",
    "WorkerPage",
    "Workers",
    "choice_answer",
    "text_answer",
]
