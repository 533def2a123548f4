"""The application of one worker: Starlette with our checks before it and our operations in it."""

from collections.abc import Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from posrec.server.http.access import ANY, METHODS, AccessRules, RequireAccess
from posrec.server.http.body import BodyReader
from posrec.server.http.counting import CountAnswers
from posrec.server.http.operation import Tools
from posrec.server.http.responses import routing_error
from posrec.server.routes import Routes
from posrec.server.service import Service
from posrec.server.settings import ServeOptions


def application(settings: ServeOptions) -> Starlette:
    service = Service(settings)
    rules = AccessRules(settings)
    bodies = BodyReader(settings.max_body, settings.request_timeout)
    tools = Tools(rules, bodies, service.background)
    operations = Routes(service).operations()
    paths = {operation.path for operation in operations}
    app = Starlette(
        routes=[operation.route(tools) for operation in operations],
        middleware=middleware(service, rules, paths if settings.log_requests else ()),
        exception_handlers={HTTPException: routing_error},
        lifespan=lambda app: service.running(),
    )
    app.router.redirect_slashes = False
    return app


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
