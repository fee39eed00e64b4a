"""Images: recipes become layers, each built once and named by the hash of all it was made from [A7]."""

from helmr.host.sandbox.images.bases import Bases
from helmr.host.sandbox.images.layers import Layer
from helmr.host.sandbox.images.network import BuildNetwork
from helmr.host.sandbox.images.store import LayerStore
from helmr.protocol.imageconfig import ImageConfig, image_config

__all__ = ["Bases", "BuildNetwork", "ImageConfig", "Layer", "LayerStore", "image_config"]
