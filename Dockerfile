# The program and what it needs, for TPUs or NVIDIA GPUs; tokenizers of Hugging Face, and work folders in object stores:
#
#     docker build -t longhaul .
#     docker build --build-arg EXTRA=cuda -t longhaul .
FROM python:3.12-slim
ARG EXTRA=tpu
WORKDIR /longhaul
COPY . .
RUN pip install --no-cache-dir -e ".[${EXTRA},hf,gs,s3]"
CMD ["python", "-m", "pretrain", "--help"]
