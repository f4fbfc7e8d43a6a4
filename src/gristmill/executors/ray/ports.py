"""Ports for a Ray cluster that starts."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import field

from gristmill.core.errors import GristmillError
from gristmill.core.fast_dataclass import fast_dataclass

_RAY_WORKER_PORTS = range(10_002, 20_000)
"""Where Ray's workers listen."""


@fast_dataclass
class PortAllocator:
    """Ports that are free. Each is claimed as well, so that clients that start at the same moment do not meet."""

    claims: list[socket.socket] = field(default_factory=list)

    def take(self, wanted: int) -> int:
        """The port, or the next one above that is free."""
        for port in range(wanted, min(wanted + 12_000, 65536)):
            if (port == wanted or port not in _RAY_WORKER_PORTS) and _is_free(port) and self._claim(port):
                return port
        raise GristmillError(f"no port is free from {wanted} on")

    def _claim(self, port: int) -> bool:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0gristmill-ray-port-{port}")  # a name without a file, that ends with its process
        except OSError:
            claim.close()
            return False
        self.claims.append(claim)
        return True

    def release_all(self) -> None:
        while self.claims:
            self.claims.pop().close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("", port))
        return True
    return False
