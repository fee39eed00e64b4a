"""Questions to people: list, read, answer. [Q3]-[Q5]"""

from __future__ import annotations

from helmr.control.api.answers import Answer
from helmr.control.api.call import Call, given
from helmr.control.api.requests import Nothing, QuestionQuery, RespondQuestion
from helmr.control.api.route import Route
from helmr.protocol import errors
from helmr.protocol.shapes import QuestionPage, QuestionReceipt, QuestionState


async def list_(call: Call[QuestionQuery, Nothing]) -> Answer:
    query, path = call.query, call.path
    service = call.services.questions
    return await service.list(call.principal, path["session_id"], path["turn_id"], query.status, given(query.cursor), query.limit)


async def list_all(call: Call[QuestionQuery, Nothing]) -> Answer:
    query = call.query
    return await call.services.questions.of_environment(call.principal, query.status, given(query.cursor), query.limit)


async def read(call: Call[Nothing, Nothing]) -> Answer:
    path = call.path
    return await call.services.questions.get(call.principal, path["session_id"], path["turn_id"], path["question_id"])


async def find(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.questions.find(call.principal, call.path["question_id"])


async def respond(call: Call[Nothing, RespondQuestion]) -> Answer:
    path, body = call.path, call.body
    return await call.services.questions.respond(
        call.principal, path["session_id"], path["turn_id"], path["question_id"], body.answer, body.response_id, call.idempotency_key
    )


QUESTION_ROUTES = (
    Route(
        method="GET",
        path="/v1/sessions/{session_id}/turns/{turn_id}/questions",
        name="list_turn_questions",
        summary="List what a Turn asks and asked people",
        handler=list_,
        tag="Questions",
        permission="sessions.read",
        query=QuestionQuery,
        answer=QuestionPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="GET",
        path="/v1/sessions/{session_id}/turns/{turn_id}/questions/{question_id}",
        name="get_turn_question",
        summary="Read a question, and its answer once there is one",
        handler=read,
        tag="Questions",
        permission="sessions.read",
        answer=QuestionState,
    ),
    Route(
        method="POST",
        path="/v1/sessions/{session_id}/turns/{turn_id}/questions/{question_id}/response",
        name="respond_question",
        summary="Answer a pending question; the first answer stands",
        handler=respond,
        tag="Questions",
        permission="questions.respond",
        body=RespondQuestion,
        takes="json",
        answer=QuestionReceipt,
        write=True,
        errors=(errors.AnswerInvalid, errors.QuestionAlreadyResponded, errors.QuestionCancelled),
    ),
    Route(
        method="GET",
        path="/v1/questions",
        name="list_questions",
        summary="List the Environment's questions, the oldest first",
        handler=list_all,
        tag="Questions",
        permission="sessions.read",
        query=QuestionQuery,
        answer=QuestionPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="GET",
        path="/v1/questions/{question_id}",
        name="get_question",
        summary="Read a question of which only the id is known",
        handler=find,
        tag="Questions",
        permission="sessions.read",
        answer=QuestionState,
    ),
)
