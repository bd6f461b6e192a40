"""Arrow in and out."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "batch_packer": ["BatchPacker"],
        "dataset": ["pack_dataset"],
        "documents": ["Documents"],
        "ledgers": ["ledger_of"],
        "packed_dataset": ["PackedDataset"],
        "packing": ["pack_table"],
        "stream_packer": ["StreamPacker"],
    },
)
