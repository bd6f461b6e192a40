"""Does a model, on this machine and called in this way, keep documents apart?"""

from .isolation import check_isolation as check_isolation
from .report import IsolationReport as IsolationReport
from .report import Leak as Leak
