"""Does a model, on this machine and called in this way, keep documents apart?"""

from .isolation import check_isolation as check_isolation
from .report import IsolationReport as IsolationReport
from .report import Leak as Leak
from .tiny import model_maker as model_maker
from .tiny import tiny_config as tiny_config
from .ways import CheckedWay as CheckedWay
from .ways import check_ways as check_ways
from .ways import ways_to_call as ways_to_call
