"""The views of the dashboard, in the order of their keys."""

from __future__ import annotations

from orchestrator.watch.screens.campaign import CampaignView
from orchestrator.watch.screens.compare import CompareView
from orchestrator.watch.screens.detail import DetailView
from orchestrator.watch.screens.events import EventsView
from orchestrator.watch.screens.generations import GenerationsView
from orchestrator.watch.screens.instances import InstancesView
from orchestrator.watch.screens.sandbox import SandboxView

VIEWS = (InstancesView, CampaignView, CompareView, GenerationsView, EventsView, SandboxView, DetailView)
