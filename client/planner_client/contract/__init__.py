"""The wire types: the one vocabulary that planner, clients and agents share."""

from planner_client.contract.faults import PROBLEM_MEDIA_TYPE, FaultCode, Problem
from planner_client.contract.histogram import Histogram
from planner_client.contract.listing import ProfileList, ProfileSummary
from planner_client.contract.plan import MicroBatch, PassedOver, Plan, Replica, SequenceCount
from planner_client.contract.profile import (
    ContextBytes,
    Device,
    Fit,
    LayoutCost,
    MeasuredLayout,
    MemoryModel,
    MicroBatchSample,
    ModelShape,
    Profile,
    ProfileMeasurement,
)
from planner_client.contract.request import DEFAULT_SOURCE, PlanOptions, PlanRequest
from planner_client.contract.strategy import OptimizerLayout, ReplicaGroup, format_strategy, parse_strategy
from planner_client.contract.timings import IterationTimings, ReplicaTiming

__all__ = [
    "DEFAULT_SOURCE",
    "PROBLEM_MEDIA_TYPE",
    "ContextBytes",
    "Device",
    "FaultCode",
    "Fit",
    "Histogram",
    "IterationTimings",
    "LayoutCost",
    "MeasuredLayout",
    "MemoryModel",
    "MicroBatch",
    "MicroBatchSample",
    "ModelShape",
    "OptimizerLayout",
    "PassedOver",
    "Plan",
    "PlanOptions",
    "PlanRequest",
    "Problem",
    "Profile",
    "ProfileList",
    "ProfileMeasurement",
    "ProfileSummary",
    "Replica",
    "ReplicaGroup",
    "ReplicaTiming",
    "SequenceCount",
    "format_strategy",
    "parse_strategy",
]
