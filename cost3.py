import time,sys
from pathlib import Path
t=time.time()
from grandrounds.runs.run import Run
Run(Path(sys.argv[2]))
from grandrounds.analysis.audit.report import find_changes
print("import",round(time.time()-t,3))
for k in range(2):
    t=time.time(); print(repr(find_changes(Path(sys.argv[2]))), round(time.time()-t,4))
