"""The order and grouping of documents: which batches, on which rank, in which epoch, resumable anywhere.

Every loader below yields each document once an epoch, over all ranks, the same number of batches on each rank. Batches
that are empty where they do not come out even are for ``PackingCollator``, which makes batches without targets of them.

``DataLoader``, under ``torchrun`` or alone; its workers fetch ahead, so the loop says how far it is:

    sampler = PackBatchSampler(documents.lengths, budget)
    loader = DataLoader(documents, batch_sampler=sampler, collate_fn=PackingCollator(), num_workers=2)
    if state:
        sampler.load_state_dict(state)
    while sampler.epoch < epochs:
        for used, batch in enumerate(loader, start=sampler.consumed + 1):
            ...
            state = sampler.checkpoint(used)

(With ``num_workers`` the sampler is ahead of the loop: count the epochs in the loop where it needs them.)
``StatefulDataLoader``: save and load the loader's own state instead; it must have as many workers again.

Accelerate and ``Trainer`` shard a prepared loader themselves, so it must see the batches of all ranks: one rank's would
be sharded twice, which raises. Accelerate also counts the epochs itself, from 0, and must be told where it is:

    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=False, dispatch_batches=False))
    sampler = PackBatchSampler(documents.lengths, budget, rank="all", world_size=accelerator.num_processes)
    if state:
        sampler.load_state_dict(state)
    begin = sampler.consumed
    loader = accelerator.prepare(DataLoader(documents, batch_sampler=sampler, collate_fn=PackingCollator()))
    loader.set_epoch(sampler.epoch)
    for step, batch in enumerate(loader, start=1):
        ...
        state = sampler.checkpoint(begin + step * accelerator.num_processes)

Or leave the loader unprepared, the sampler without ``rank``, and move the batches to the device.

Lightning: ``Trainer(use_distributed_sampler=False)`` on several ranks.
"""

from .length_buckets import LengthBucketBatchSampler
from .packs import PackBatchSampler

__all__ = ["LengthBucketBatchSampler", "PackBatchSampler"]
