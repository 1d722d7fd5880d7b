"""The lab: small language models, trained on a processor in seconds, that put the encodings to the test.

- :func:`results` reads what was measured, and needs no torch;
- :func:`posenc_ref.lab.training.train` trains one model and returns it;
- :func:`posenc_ref.lab.run.run` turns a :class:`Job` into a result; ``posenc lab run`` does so for whole suites.
"""

from posenc_ref.lab.config import Config, Job
from posenc_ref.lab.store import results

__all__ = ["Config", "Job", "results"]
