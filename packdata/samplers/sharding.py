"""Finds the mistake of sharding twice: a sampler that deals to ranks, inside a loader that does so again."""

from types import FrameType

from .dealing import Share


def refuse_second_sharding(consumer: FrameType | None, share: Share) -> None:
    """Raise if Accelerate's ``BatchSamplerShard`` iterates over batches that it cannot share out.

    It keeps every n-th batch of what it is given. Of one rank's batches, that would lose all but every n-th, silently.
    Nothing tells a sampler that it is wrapped, so this looks at who asks for the first batch.

    Args:
        consumer: The frame that iterates over the sampler.
        share: The sampler's share of the batches.

    Raises:
        RuntimeError: If batches would get lost.
    """
    shard = consumer.f_locals.get("self") if consumer is not None else None
    if type(shard).__name__ != "BatchSamplerShard":
        return
    processes = getattr(shard, "num_processes", 1)
    shares_out = share.rank is None and share.world % processes == 0
    if processes > 1 and not shares_out:
        raise RuntimeError(
            f"accelerate shares these batches out to {processes} processes, but this sampler deals to "
            f"{share.world} ranks and yields those of {'all' if share.rank is None else 'one'}: some would get lost. "
            f'Give rank="all", world_size={processes} (and even_batches=False), or do not prepare() the loader'
        )
