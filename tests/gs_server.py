"""An emulator of Google's object store, with what TensorStore and locks need of the store and the emulator lacks.

An object's generation stands among the headers of what is read, and something is written or deleted on condition:
`ifGenerationMatch` is the generation that has to be there, or 0.

    python -m tests.gs_server PORT
"""

import sys
from http import HTTPStatus

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.server import HANDLERS, create_server


def generation(request, storage) -> str:
    """That of the object that a request reads, writes or deletes; 0 where there is none."""
    name = request.params.get("object_id") or request.query.get("name", [None])[0]
    try:
        name = name or request.data.get("meta", request.data)["name"]
        return storage.get_file_obj(request.params["bucket_name"], name)["generation"]
    except NotFound:
        return "0"


def reading(handle):
    """A handler that gives the generation too."""

    def handled(request, response, storage, *args, **kwargs):
        if request.params.get("object_id"):
            response["x-goog-generation"] = generation(request, storage)
        return handle(request, response, storage, *args, **kwargs)

    return handled


def writing(handle):
    """A handler that does nothing, and says so, where the generation is another than what the request asks for."""

    def handled(request, response, storage, *args, **kwargs):
        for wanted in request.query.get("ifGenerationMatch", []):
            if (found := generation(request, storage)) != wanted:
                response.status = HTTPStatus.PRECONDITION_FAILED
                response.json({"error": {"code": 412, "message": f"the generation is {found}, not {wanted}"}})
                return None
        return handle(request, response, storage, *args, **kwargs)

    return handled


def main(port: int) -> None:
    for _, handlers in HANDLERS:
        for method, handle in handlers.items():
            handlers[method] = (reading if method == "GET" else writing)(handle)
    create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket").run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
