"""The application of one worker: Starlette's router of our operations, behind our checks.

Starlette's application would add layers that answer errors, which the operations do themselves.
"""

from collections.abc import Collection

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Router

from posrec.server.http.access import ANY, METHODS, AccessRules, RequireAccess
from posrec.server.http.body import BodyReader
from posrec.server.http.counting import CountAnswers
from posrec.server.http.operation import Tools, routes_of
from posrec.server.http.responses import not_found
from posrec.server.routes import Routes
from posrec.server.service import Service
from posrec.server.settings import ServeOptions


def application(settings: ServeOptions) -> Router:
    service = Service(settings)
    rules = AccessRules(settings)
    bodies = BodyReader(settings.max_body, settings.request_timeout)
    tools = Tools(rules, bodies, service.background)
    operations = Routes(service).operations()
    paths = {operation.path for operation in operations}
    return Router(
        routes_of(operations, tools),
        redirect_slashes=False,
        default=not_found,
        lifespan=lambda app: service.running(),
        middleware=middleware(service, rules, paths if settings.log_requests else ()),
    )


def middleware(
    service: Service, rules: AccessRules, logged_paths: Collection[str]
) -> list[Middleware]:
    """The outermost first. A preflight request carries no key, so CORS comes before the access."""
    settings = service.settings
    layers = [Middleware(CountAnswers, service.metrics, logged_paths)]
    if settings.allow_origin:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=[ANY] if ANY in settings.allow_origin else [],
            allow_origin_regex=rules.origins,
            allow_methods=METHODS,
            allow_headers=["*"],
            expose_headers=["Retry-After"],
            max_age=600,  # seconds until a browser asks again
        )
        layers.append(cors)
    return [*layers, Middleware(RequireAccess, rules)]
