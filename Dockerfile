# The dashboard and the command line in one image, with the exact versions that the tests ran on.
#   docker build -t kareus .
#   docker run -p 8501:8501 -v kareus:/data kareus
# On a machine with NVIDIA GPUs add --gpus all; locking clocks also needs --cap-add SYS_ADMIN.
FROM python:3.11-slim AS build
ARG PIP_ARGS=""
WORKDIR /src
RUN python -m venv /opt/kareus
COPY pyproject.toml constraints.txt README.md ./
COPY kareus kareus
RUN /opt/kareus/bin/pip install --no-cache-dir --constraint constraints.txt ${PIP_ARGS} .
# One small study compiles the solver's inner loops beside their modules, so that the first one need not.
RUN KAREUS_HOME=/src/home /opt/kareus/bin/kareus optimize --model tiny --tp 2 --pp 2 \
    --microbatch-size 2 --seq-len 128 --num-microbatches 4 --budget fast --json

FROM python:3.11-slim
COPY --from=build /opt/kareus /opt/kareus
WORKDIR /srv/kareus
COPY app app
COPY .streamlit .streamlit
ENV PATH=/opt/kareus/bin:$PATH KAREUS_HOME=/data PYTHONUNBUFFERED=1
VOLUME /data
EXPOSE 8501
HEALTHCHECK --interval=30s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://localhost:8501/_stcore/health', timeout=3)"]
CMD ["streamlit", "run", "app", "--server.address", "0.0.0.0", "--server.port", "8501"]
