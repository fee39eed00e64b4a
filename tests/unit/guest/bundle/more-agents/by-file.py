"""An agent in a file whose path is no module name."""

from helmr.sdk.agent import agent
from helmr.sdk.image import image
from helmr.sdk.template import template


@agent(id="dashed", template=template(id="t", image=image("t").from_host()))
async def dashed(turn, ctx):
    return __name__
