"""The two addresses of the engine process: the user's Unix socket and a loopback TCP port."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from pathlib import Path

from server.loopback import is_loopback

PREFERRED_PORT = 8642
"""Taken when it is free, so that the settings of an HTTP client stay right."""


class AddressError(Exception):
    """An address can't be served. str() is one line that says why and what to do."""


def bind_socket(path: Path) -> socket.socket:
    """A Unix socket of mode 0600. Only the holder of the engine lock may call this: a stale one is replaced."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:  # a folder, say
        raise AddressError(
            f"{path} is in the way of the engine's socket and can't be removed: {error.strerror}"
        ) from error
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise AddressError(f"the socket {path} can't be made: {error.strerror}") from error
    finally:
        os.umask(before)
    listener.listen(128)
    return listener


def bind_loopback(host: str, port: int | None) -> socket.socket:
    """A listening TCP socket; port None takes the preferred port, or any free one. Raises AddressError."""
    check_loopback(host)
    address = "127.0.0.1" if host.lower().rstrip(".") == "localhost" else host
    if port is not None:
        return _bind(address, port)
    try:
        return _bind(address, PREFERRED_PORT)
    except AddressError:
        return _bind(address, 0)


def check_loopback(host: str) -> None:
    """Raises AddressError for any address that other machines could reach."""
    if not host:
        raise AddressError("the host to serve on is empty, which would be every address; use --host 127.0.0.1")
    if not is_loopback(host):
        raise AddressError(
            f"refusing to serve on {host}: other machines could reach it, which needs an API key, and API keys "
            f"are not supported yet; use --host 127.0.0.1"
        )


def _bind(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without it, the port of an engine that just ended stays taken for a minute.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressError(
                f"port {port} on {address} is in use; name another with --port, or leave --port out for a free one"
            ) from error
        raise AddressError(f"can't serve on {address} port {port}: {error.strerror}") from error
    return listener


def http_url(listener: socket.socket) -> str:
    address, port = listener.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
