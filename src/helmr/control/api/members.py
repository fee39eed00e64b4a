"""Members of the installation: list, read of, add, change, remove. SPEC 14.

They are for people: a key belongs to one Environment, and members to none.
"""

from __future__ import annotations

from urllib.parse import quote

from helmr.control.api.answers import Answer, encoded
from helmr.control.api.auth_requests import AddMember, ChangeMember
from helmr.control.api.call import Call, given
from helmr.control.api.requests import Nothing, PageQuery
from helmr.control.api.route import Route
from helmr.protocol import errors
from helmr.protocol.member_shapes import Member, MemberPage, NewMember

TAG = "Members"


async def list_(call: Call[PageQuery, Nothing]) -> Answer:
    return encoded(await call.services.members.list(call.person, given(call.query.cursor), call.query.limit))


async def get(call: Call[Nothing, Nothing]) -> Answer:
    return encoded(await call.services.members.get(call.person, call.path["member_id"]))


async def add(call: Call[Nothing, AddMember]) -> Answer:
    body = call.body
    return await call.services.members.add(
        call.person,
        email=body.email,
        name=body.name,
        role=body.role,
        link_at=lambda code: f"{call.site.url}/auth/password-link?code={quote(code)}",
        address=call.address,
        idempotency_key=call.idempotency_key,
    )


async def change(call: Call[Nothing, ChangeMember]) -> Answer:
    body = call.body
    return await call.services.members.change(
        call.person,
        call.path["member_id"],
        name=given(body.name),
        role=given(body.role),
        disabled=given(body.disabled),
        address=call.address,
        idempotency_key=call.idempotency_key,
    )


async def remove(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.members.remove(
        call.person, call.path["member_id"], address=call.address, idempotency_key=call.idempotency_key
    )


MEMBER_ROUTES = (
    Route(
        method="GET",
        path="/v1/members",
        name="list_members",
        summary="List the members of the installation, the newest first",
        handler=list_,
        tag=TAG,
        access="person",
        permission="members.read",
        query=PageQuery,
        answer=MemberPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="GET",
        path="/v1/members/{member_id}",
        name="get_member",
        summary="Read a member's role, and how and when they came in",
        handler=get,
        tag=TAG,
        access="person",
        permission="members.read",
        answer=Member,
    ),
    Route(
        method="POST",
        path="/v1/members",
        name="add_member",
        summary="Add a member, and make the link by which they set a password; for admins, and owners for owners",
        handler=add,
        tag=TAG,
        access="person",
        permission="members.manage",
        body=AddMember,
        takes="json",
        answer=NewMember,
        status=201,
        write=True,
        errors=(errors.Forbidden, errors.MemberExists),
    ),
    Route(
        method="POST",
        path="/v1/members/{member_id}/change",
        name="change_member",
        summary="Give a member another name or role, or shut them out and let them in again",
        handler=change,
        tag=TAG,
        access="person",
        permission="members.manage",
        body=ChangeMember,
        takes="json",
        answer=Member,
        write=True,
        errors=(errors.Forbidden, errors.LastOwner),
    ),
    Route(
        method="POST",
        path="/v1/members/{member_id}/remove",
        name="remove_member",
        summary="Remove a member; what they did stays, under their id",
        handler=remove,
        tag=TAG,
        access="person",
        permission="members.manage",
        body=Nothing,
        takes="json",
        answer=Member,
        write=True,
        errors=(errors.Forbidden, errors.LastOwner),
    ),
)
