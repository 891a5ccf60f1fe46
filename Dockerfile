# The router's image. Every package is pinned by hash; only the built wheel and its runtime reach the last stage.
#   docker build -t boomerang .
#   docker run -p 8000:8000 boomerang serve --prefill http://p:8100 --decode http://d:8200

FROM python:3.12-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# The build backend comes from the development lock, so that it is pinned, too.
COPY requirements-dev.lock ./
RUN python -m venv /build && /build/bin/pip install --require-hashes -r requirements-dev.lock
COPY requirements.lock ./
RUN python -m venv /opt/boomerang && /opt/boomerang/bin/pip install --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY router router
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/boomerang/bin/pip install --no-deps --no-index /wheels/*.whl \
    && /opt/boomerang/bin/pip uninstall --yes pip

FROM python:3.12-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin boomerang
COPY --from=build /opt/boomerang /opt/boomerang
# In a container the loopback address would be reached by nobody.
ENV PATH=/opt/boomerang/bin:$PATH PYTHONUNBUFFERED=1 BOOMERANG_HOST=0.0.0.0
USER 10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# Asks /live on the port of BOOMERANG_PORT; a port set by flag or file needs a health check of its own.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ.get('BOOMERANG_PORT') or 8000}/live\", timeout=2)"]
ENTRYPOINT ["boomerang"]
CMD ["serve"]
