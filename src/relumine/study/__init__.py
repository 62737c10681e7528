"""How we know: experiments as data, the runner, the run store, and the paper's figures as declared studies."""

from relumine.jobs.engines import LocalProcesses as LocalProcesses
from relumine.jobs.engines import RayCluster as RayCluster
from relumine.jobs.provenance import Provenance as Provenance
from relumine.study.experiment import Access as Access
from relumine.study.experiment import Experiment as Experiment
from relumine.study.experiment import Measures as Measures
from relumine.study.experiment import Row as Row
from relumine.study.experiment import Student as Student
from relumine.study.experiment import Target as Target
from relumine.study.runner import RunStore as RunStore
from relumine.study.runner import StudyProgress as StudyProgress
from relumine.study.runner import run_study as run_study
