"""The wire types: the one vocabulary that planner, clients and agents share."""

from planner_client.contract.faults import PROBLEM_MEDIA_TYPE, FaultCode, Problem
from planner_client.contract.histogram import Histogram
from planner_client.contract.listing import ProfileList, ProfileSummary
from planner_client.contract.options import CostModel, Method, PlanOptions
from planner_client.contract.plan import GroupCount, MicroBatch, PassedOver, Plan, Replica, SequenceCount
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
from planner_client.contract.request import DEFAULT_SOURCE, AtomicGroup, DevicePool, PlanRequest
from planner_client.contract.strategy import (
    AllowedLayout,
    OptimizerLayout,
    ReplicaGroup,
    format_strategy,
    parse_strategy,
)
from planner_client.contract.timings import IterationTimings, ReplicaTiming

__all__ = [
    "DEFAULT_SOURCE",
    "PROBLEM_MEDIA_TYPE",
    "AllowedLayout",
    "AtomicGroup",
    "ContextBytes",
    "CostModel",
    "Device",
    "DevicePool",
    "FaultCode",
    "Fit",
    "GroupCount",
    "Histogram",
    "IterationTimings",
    "LayoutCost",
    "MeasuredLayout",
    "MemoryModel",
    "Method",
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
