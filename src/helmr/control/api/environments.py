"""Projects and Environments: list, read of, create, limit. SPEC 1, 14.

They are for people: a key belongs to one Environment, and sees no other [O1].
"""

from __future__ import annotations

from helmr.control.api.answers import Answer, encoded
from helmr.control.api.auth_requests import ChangeLimits, CreateEnvironment, CreateProject, EnvironmentsQuery
from helmr.control.api.call import Call, given
from helmr.control.api.requests import Nothing, PageQuery
from helmr.control.api.route import Route
from helmr.protocol import errors
from helmr.protocol.environment_shapes import Environment, EnvironmentPage, Project, ProjectPage
from helmr.protocol.wire import to_wire

TAG = "Projects"


async def projects(call: Call[PageQuery, Nothing]) -> Answer:
    return encoded(await call.services.environments.projects(call.person, given(call.query.cursor), call.query.limit))


async def create_project(call: Call[Nothing, CreateProject]) -> Answer:
    return await call.services.environments.create_project(
        call.person, name=call.body.name, address=call.address, idempotency_key=call.idempotency_key
    )


async def list_(call: Call[EnvironmentsQuery, Nothing]) -> Answer:
    query = call.query
    return encoded(await call.services.environments.list(call.person, given(query.project), given(query.cursor), query.limit))


async def get(call: Call[Nothing, Nothing]) -> Answer:
    return encoded(await call.services.environments.get(call.person, call.path["environment_id"]))


async def create(call: Call[Nothing, CreateEnvironment]) -> Answer:
    return await call.services.environments.create(
        call.person, project=call.body.project, name=call.body.name, address=call.address, idempotency_key=call.idempotency_key
    )


async def limit(call: Call[Nothing, ChangeLimits]) -> Answer:
    return await call.services.environments.limit(
        call.person, call.path["environment_id"], to_wire(call.body), address=call.address, idempotency_key=call.idempotency_key
    )


ENVIRONMENT_ROUTES = (
    Route(
        method="GET",
        path="/v1/projects",
        name="list_projects",
        summary="List the projects of the installation, the newest first",
        handler=projects,
        tag=TAG,
        access="person",
        permission="projects.read",
        query=PageQuery,
        answer=ProjectPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="POST",
        path="/v1/projects",
        name="create_project",
        summary="Make a project, still without Environments; for admins",
        handler=create_project,
        tag=TAG,
        access="person",
        permission="projects.manage",
        body=CreateProject,
        takes="json",
        answer=Project,
        status=201,
        write=True,
        errors=(errors.Forbidden, errors.ProjectExists),
    ),
    Route(
        method="GET",
        path="/v1/environments",
        name="list_environments",
        summary="List Environments with their limits, the newest first",
        handler=list_,
        tag=TAG,
        access="person",
        permission="projects.read",
        query=EnvironmentsQuery,
        answer=EnvironmentPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="GET",
        path="/v1/environments/{environment_id}",
        name="get_environment",
        summary="Read an Environment's limits, and which Deployment is current",
        handler=get,
        tag=TAG,
        access="person",
        permission="projects.read",
        answer=Environment,
    ),
    Route(
        method="POST",
        path="/v1/environments",
        name="create_environment",
        summary="Make an Environment of a project; for admins",
        handler=create,
        tag=TAG,
        access="person",
        permission="projects.manage",
        body=CreateEnvironment,
        takes="json",
        answer=Environment,
        status=201,
        write=True,
        errors=(errors.Forbidden, errors.ProjectNotFound, errors.EnvironmentExists),
    ),
    Route(
        method="POST",
        path="/v1/environments/{environment_id}/limits",
        name="limit_environment",
        summary="Set limits of an Environment; for admins",
        handler=limit,
        tag=TAG,
        access="person",
        permission="projects.manage",
        body=ChangeLimits,
        takes="json",
        answer=Environment,
        write=True,
        errors=(errors.Forbidden,),
    ),
)
