"""Scaling out: many trainings over processes and machines, one training over many, and crashes on the way.

`tasks` runs independent trainings on local processes or a Ray cluster; `distributed` trains one network on several
ranks of torch.distributed; `checkpoints` lets a training be killed at any moment. Import what you need: `tasks` lies
below the five places and is used by them, the others lie above.
"""

from __future__ import annotations
