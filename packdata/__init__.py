"""packdata packs tokenised documents into training batches and keeps their boundaries true from dataset to loss.

Names are attached lazily: ``import packdata`` loads neither torch nor datasets.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
