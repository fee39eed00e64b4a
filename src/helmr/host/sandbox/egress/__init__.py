"""The only way out of a sandbox: a filtering proxy on a unix socket, and the forwarder that makes it a loopback port inside [C4]."""

from helmr.host.sandbox.egress.forwarder import PROXY_ENVIRONMENT, forwarded
from helmr.host.sandbox.egress.proxy import EgressProxy
from helmr.host.sandbox.egress.rules import Decision, EgressPolicy, Exemption, HostRule
from helmr.host.sandbox.egress.upstream import Upstream

__all__ = ["PROXY_ENVIRONMENT", "Decision", "EgressPolicy", "EgressProxy", "Exemption", "HostRule", "Upstream", "forwarded"]
