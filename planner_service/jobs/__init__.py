"""Jobs: iterations that are solved when their sources have reported, once, whichever service takes them up."""

from planner_service.jobs.crowd import CrowdLimits
from planner_service.jobs.dispatcher import Dispatcher, DispatchLimits
from planner_service.jobs.janitor import Janitor
from planner_service.jobs.job_desk import JobDesk, JobLimits
from planner_service.jobs.lateness import Congestion
from planner_service.jobs.learner import Learner
from planner_service.jobs.learning_desk import LearningDesk
from planner_service.jobs.waiters import Waiters

__all__ = [
    "Congestion",
    "CrowdLimits",
    "DispatchLimits",
    "Dispatcher",
    "Janitor",
    "JobDesk",
    "JobLimits",
    "Learner",
    "LearningDesk",
    "Waiters",
]
