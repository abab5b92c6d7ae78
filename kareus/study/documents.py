"""What is stored of a study's request: the request itself and the workload it was resolved to.

The workload is kept whole, so that a study stays readable when a catalogue changes or a model's
configuration file is gone.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from kareus.core.pipeline import Pipeline, build_pipeline
from kareus.core.workload import Workload
from kareus.store import StudyRecord
from kareus.study.request import StudyRequest

REQUEST: TypeAdapter[StudyRequest] = TypeAdapter(StudyRequest)
WORKLOAD: TypeAdapter[Workload] = TypeAdapter(Workload)


def study_document(request: StudyRequest, workload: Workload) -> Mapping[str, object]:
    """Return the JSON document stored with a study."""
    document: dict[str, Any] = REQUEST.dump_python(request, mode="json")
    document["workload"] = WORKLOAD.dump_python(workload, mode="json")
    return document


def request_of(record: StudyRecord) -> StudyRequest:
    """Return the request a study was made with."""
    document = {key: value for key, value in record.request.items() if key != "workload"}
    return REQUEST.validate_python(document)


def pipeline_of(request: StudyRequest, workload: Workload) -> Pipeline:
    """Return the pipeline of a study's plans.

    Raises:
        ConfigError: The order does not go with the stages, microbatches or chunks.
    """
    return build_pipeline(
        request.order,
        workload.parallelism.pp,
        workload.num_microbatches,
        num_chunks=request.num_chunks,
    )


def workload_of(record: StudyRecord) -> Workload:
    """Return the workload a study was resolved to."""
    return WORKLOAD.validate_python(record.request["workload"])
