"""Running the application until somebody stops it."""

import signal
import socket

import uvicorn

from relumine.errors import MisuseError
from relumine.oracle.http.endpoint import is_loopback
from relumine.serve.guard import App

_SECONDS_TO_FINISH = 10  # as long as docker stop waits


def listen(host: str, port: int, *, needs_keys: bool) -> socket.socket:
    """A socket at this address, for this machine only if keys are needed and there are none."""
    if needs_keys and not is_loopback(host):
        raise MisuseError(f"--host {host}: expected --key-file with it: others could ask without a token")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise MisuseError(f"cannot listen at {host}, port {port}: {error}; choose another --port") from error


def serve(app: App, listener: socket.socket) -> None:
    """Answer until SIGTERM or SIGINT, then finish what has begun."""
    # Who asks is told by the connection's own address: X-Forwarded-For is what the client writes there.
    config = uvicorn.Config(
        app,
        log_level="warning",
        timeout_graceful_shutdown=_SECONDS_TO_FINISH,
        server_header=False,
        proxy_headers=False,
    )
    # uvicorn raises the signal once more when it has stopped; a stop that was asked for is no failure.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        listener.close()
