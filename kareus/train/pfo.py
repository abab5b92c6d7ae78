"""A client of Zeus' pipeline frequency optimizer server: the clocks come from there.

    rank 0   POST /register_job              -> job id, told to all ranks
    all      POST /register_rank/{job id}
    all      GET  /schedule/{job id}?rank=R  -> [[instruction, MHz], ...] once every rank has asked

The server knows no context parallelism: tp_degree is TP x CP, and the rank within it
cp_rank x TP + tp_rank.
"""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kareus.errors import ConfigError, ScheduleError
from kareus.schedule.document import Schedule

_TIMEOUT_S = 60.0
_REACH_S = 5.0


class MeshPlace(Protocol):
    """A rank's place in the mesh."""

    @property
    def rank(self) -> int:
        """Global rank."""

    @property
    def pp(self) -> int:
        """Stage."""

    @property
    def dp(self) -> int:
        """Data-parallel rank."""

    @property
    def cp(self) -> int:
        """Context-parallel rank."""

    @property
    def tp(self) -> int:
        """Tensor-parallel rank."""


@dataclass(frozen=True, kw_only=True)
class PfoServer:
    """A server.

    Attributes:
        url: Its address, such as `http://127.0.0.1:7787`.
    """

    url: str

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(
                f"--pfo-url {self.url}: not an address; give one such as http://127.0.0.1:7787"
            )

    def check(self) -> None:
        """Make sure the server is there and speaks the protocol.

        Raises:
            ConfigError: It does not answer, or is another server.
        """
        paths = self._request("GET", "/openapi.json", timeout_s=_REACH_S).get("paths", {})
        if "/register_job" not in paths:
            raise ConfigError(
                f"--pfo-url {self.url}: answers, but is no Zeus pipeline frequency optimizer "
                "server; check the port"
            )

    def register_job(self, *, pp: int, dp: int, tp_cp: int, metadata: str | None = None) -> str:
        """Register a job and return its id."""
        return str(
            self._request(
                "POST",
                "/register_job",
                {
                    "job_id": "",
                    "pp_degree": pp,
                    "dp_degree": dp,
                    "tp_degree": tp_cp,
                    "world_size": pp * dp * tp_cp,
                    "job_metadata": metadata,
                },
            )
        )

    def register_rank(
        self, job: str, *, rank: int, dp: int, pp: int, tp_cp: int, clocks_mhz: Sequence[int]
    ) -> None:
        """Register a rank with the clocks its GPU offers."""
        self._request(
            "POST",
            f"/register_rank/{urllib.parse.quote(job)}",
            {
                "rank": rank,
                "dp_rank": dp,
                "pp_rank": pp,
                "tp_rank": tp_cp,
                "available_frequencies": sorted(clocks_mhz, reverse=True),
            },
        )

    def schedule(self, job: str, *, rank: int) -> list[tuple[str, int]]:
        """Return (instruction, MHz) of a rank; waits until every rank has asked."""
        answer = self._request("GET", f"/schedule/{urllib.parse.quote(job)}?rank={rank}")
        try:
            if int(answer["rank"]) != rank:
                raise ValueError
            return [(str(name), int(mhz)) for name, mhz in answer["frequencies"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ScheduleError(
                f"{self.url}: answers rank {rank} with something else than its schedule; is its "
                "scheduler PointSolution3D?"
            ) from error

    def _request(
        self, method: str, path: str, body: object = None, *, timeout_s: float = _TIMEOUT_S
    ) -> Any:
        """Send a request and return the answer's JSON."""
        request = urllib.request.Request(
            self.url.rstrip("/") + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        # No proxy: the server is on the cluster's own network.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout_s) as response:
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                said = " ".join(error.read().decode(errors="replace").split())[-200:]
            raise ConfigError(
                f"--pfo-url {self.url}: {method} {path.partition('?')[0]} was refused with status "
                f"{error.code} ({said}); check the server's log and its solution_path"
            ) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise ConfigError(
                f"--pfo-url {self.url}: no pipeline frequency optimizer server answers there "
                f"({reason}); start it as the bundle's README.md says, or leave --pfo-url out"
            ) from error


def served_clocks(url: str, schedule: Schedule, place: MeshPlace) -> tuple[int, ...]:
    """Register this rank with a server and return the clocks of its instructions, in order.

    Every rank must call it; `torch.distributed` is running.

    Raises:
        ConfigError: The server does not answer, or refuses.
        ScheduleError: Its schedule is for other instructions than the bundle's.
    """
    import torch.distributed as dist

    server = PfoServer(url=url)
    parallelism = schedule.workload.parallelism
    told: list[str | None] = [None]
    if place.rank == 0:
        told = [
            server.register_job(
                pp=parallelism.pp,
                dp=parallelism.dp,
                tp_cp=parallelism.tp * parallelism.cp,
                metadata=f"kareus-plan-{schedule.plan}",
            )
        ]
    dist.broadcast_object_list(told, src=0)
    job = told[0]
    assert job is not None
    server.register_rank(
        job,
        rank=place.rank,
        dp=place.dp,
        pp=place.pp,
        tp_cp=place.cp * parallelism.tp + place.tp,
        clocks_mhz=schedule.workload.gpu.clocks_mhz,
    )
    dist.barrier()
    served = server.schedule(job, rank=place.rank)
    return match_clocks(served, schedule, place.pp, url)


def match_clocks(
    served: Sequence[tuple[str, int]], schedule: Schedule, stage: int, place: str
) -> tuple[int, ...]:
    """Return the clocks of a served schedule, after holding its instructions against the bundle's.

    Raises:
        ScheduleError: They differ; the message names the first difference.
    """
    instructions = schedule.stages[stage].instructions
    if len(served) != len(instructions):
        raise ScheduleError(
            f"{place}, stage {stage}: serves {len(served)} instructions, the bundle has "
            f"{len(instructions)}; serve the frequency file of this bundle"
        )
    for position, ((name, _), wanted) in enumerate(zip(served, instructions, strict=True)):
        if name != wanted.direction:
            raise ScheduleError(
                f"{place}, stage {stage}, position {position}: serves a {name}, the bundle has a "
                f"{wanted.direction}; serve the frequency file of this bundle"
            )
    return tuple(mhz for _, mhz in served)
