"""From a server's address on a command line to an oracle."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relumine.errors import MisuseError, TargetError
from relumine.oracle.base import DType, Offer
from relumine.oracle.http.endpoint import WITHOUT_EXPLANATIONS, Endpoint, protocol_at, read_endpoint
from relumine.oracle.http.oracle import HttpOracle


@dataclass(frozen=True)
class EndpointOptions:
    """What an address does not say: the server's description, the authorisation of the test, the highest rate."""

    endpoint_config: Path | None = None
    outputs: int | None = None
    dtype: DType | None = None
    authorized_by: str | None = None
    rate: float | None = None
    concurrency: int | None = None
    timeout: float | None = None

    def given(self) -> list[str]:
        """Those that were said, as on the command line."""
        return [name.replace("_", "-") for name, value in vars(self).items() if value is not None]

    @property
    def manners(self) -> dict[str, Any]:
        """With whose permission and how fast a server is asked, as fields of its Endpoint."""
        return {name: getattr(self, name) for name in ("authorized_by", "rate", "concurrency", "timeout")}


def is_url(text: str) -> bool:
    """Whether a target is a server's address."""
    return text.lower().startswith(("http://", "https://"))


def oracle_at(url: str, said: EndpointOptions, **offered: Any) -> HttpOracle:
    """The oracle at an address. ``offered`` are fields of its Offer, None where nothing was said."""
    try:
        return HttpOracle.at(endpoint_at(url, said, **offered))
    except MisuseError as error:
        raise TargetError(str(error)) from error


def endpoint_at(url: str, said: EndpointOptions, **offered: Any) -> Endpoint:
    """The description of the server at an address."""
    offered |= {"outputs": said.outputs, "dtype": said.dtype}
    offered = {name: value for name, value in offered.items() if value is not None}
    try:
        endpoint = _described(url, offered) if said.endpoint_config is None else _configured(url, said, offered)
        return endpoint.changed(**said.manners)
    except MisuseError as error:
        raise TargetError(str(error)) from error


def _described(url: str, offered: dict[str, Any]) -> Endpoint:
    """The endpoint as the command line describes it. Servers compute in float32 unless one knows better."""
    protocol = protocol_at(url)
    shown = "none" if protocol in WITHOUT_EXPLANATIONS else "all"
    usual = {"values": "logits", "gradients": shown, "dtype": "float32"}
    if not {"inputs", "outputs"} <= set(offered):
        raise TargetError(
            "a server's address does not say what it takes and answers: give --input-shape and --outputs, or "
            "--endpoint-config FILE (relumine probe --write-config proposes one)"
        )
    return Endpoint(url, Offer(**usual | offered))


def _configured(url: str, said: EndpointOptions, offered: dict[str, Any]) -> Endpoint:
    """The endpoint as a file describes it, and the command line corrects it."""
    assert said.endpoint_config is not None
    endpoint = read_endpoint(said.endpoint_config)
    if replace(endpoint, url=url).url != endpoint.url:
        raise TargetError(
            f"{said.endpoint_config} describes {endpoint.url}, the target is another; give the file that belongs to it"
        )
    return replace(endpoint, offer=replace(endpoint.offer, **offered))
