# The router's image: two stages, of which the second has the wheel and its runtime alone, tracing among it.
#   docker build -t boomerang .
#   docker run --read-only -p 8000:8000 boomerang serve --prefill http://p:8100 --decode http://d:8200
#
# Packages are pinned by hash. The base is pinned by tag, as its digest differs by platform and moves with fixes of
# the system: for builds that are the same for ever, name one, --build-arg PYTHON_IMAGE=python@sha256:...
ARG PYTHON_IMAGE=python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY requirements-build.lock ./
RUN python -m venv /build && /build/bin/pip install --require-hashes -r requirements-build.lock
COPY requirements-image.lock ./
RUN python -m venv /opt/boomerang && /opt/boomerang/bin/pip install --require-hashes -r requirements-image.lock
COPY pyproject.toml README.md LICENSE ./
COPY router router
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/boomerang/bin/pip install --no-deps --no-index /wheels/*.whl \
    && /opt/boomerang/bin/pip uninstall --yes pip

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/boomerang /opt/boomerang
# In a container the loopback address would be reached by nobody. One process writes no file; --workers N keeps its
# metrics in /tmp.
ENV PATH=/opt/boomerang/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 BOOMERANG_HOST=0.0.0.0
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# Asks /live on the port of BOOMERANG_PORT; a port set by flag or file needs a health check of its own.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ.get('BOOMERANG_PORT') or 8000}/live\", timeout=2)"]
ENTRYPOINT ["boomerang"]
CMD ["serve"]
