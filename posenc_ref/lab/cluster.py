"""Many jobs on many processes or machines, by Dask: what is done stays done, what a dead worker held is done again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dask
from distributed import Client, LocalCluster, as_completed

from posenc_ref.lab import store
from posenc_ref.lab.config import Job
from posenc_ref.lab.run import run

Step = Callable[[Job, str], None]

KEPT = {"MALLOC_TRIM_THRESHOLD_": 2**31, "MALLOC_MMAP_THRESHOLD_": 2**31}
"""Environment of local workers: they keep the memory of a step for the next one. Dask's own setting gives it back at
once, and to fetch it again costs more processor time than half a training step."""


@contextmanager
def connect(scheduler: str | None = None, workers: int = 2) -> Iterator[Client]:
    """A client of the scheduler at that address, or of a local cluster of processes with one thread each."""
    if scheduler:
        with Client(scheduler, timeout="10s") as client:
            yield client
    else:
        with (
            dask.config.set({"distributed.nanny.pre-spawn-environ": KEPT | {"OMP_NUM_THREADS": 1}}),
            LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            yield client


def run_all(
    jobs: Sequence[Job], client: Client, folder: Path = store.RESULTS, step: Step | None = None, device: str = "cpu"
) -> list[Job]:
    """Run the jobs whose result is not in ``folder`` yet, and save each one as it comes. Returns those that failed.

    A job whose worker dies goes to another one. ``step(job, message)`` is called after each job, with an empty
    message if it went well. A worker with another recipe, that is with another version of the course, fails its job.
    """
    missing = [job for job in jobs if not (folder / job.name).exists()]
    futures = {client.submit(run, job, device, key=f"{job.name}-{id(job)}", pure=False): job for job in missing}
    failed = []
    for future in as_completed(futures):
        job, message = futures[future], ""
        if future.status == "finished":
            result = future.result()
            if result["key"] == job.key:
                store.save(result, folder)
            else:
                message = f"the worker has another recipe: {result['key']} instead of {job.key}"
        else:
            message = repr(future.exception())
        if message:
            failed.append(job)
        if step:
            step(job, message)
    return failed
