#!/usr/bin/env bash
# Horovod 0.28.1 for torch, and for TensorFlow where that is installed, into an environment of its own that has the packages of the
# Python that runs the tests: build_horovod.sh PYTHON FOLDER. It takes ten minutes on two idle cores.
# - Its sources ask for C++14, and torch's headers for C++17: two lines are changed.
# - TensorFlow's headers include two of Google's that its wheel lacks: Debian's packages are unpacked beside the build, not installed.
# - An XLA header that xla_mpi_ops.cc needs has gone from TensorFlow: Horovod's collectives inside XLA are left out.
set -euo pipefail
python=$1
[ -e "$2/done" ] && exit 0
rm -rf "$2" && mkdir -p "$2" && cd "$2"
folder=$PWD tensorflow=HOROVOD_WITHOUT_TENSORFLOW=1
"$python" -m venv --system-site-packages venv
"$python" -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' > "$(venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/tests.pth"
venv/bin/python -m pip install --quiet setuptools wheel cloudpickle pyyaml packaging cffi psutil 'cmake<4'
venv/bin/python -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation horovod==0.28.1
tar xzf horovod-0.28.1.tar.gz
sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 17)/' horovod-0.28.1/{CMakeLists.txt,horovod/torch/CMakeLists.txt}
sed -i '/xla_mpi_ops.cc/d' horovod-0.28.1/horovod/tensorflow/CMakeLists.txt
if venv/bin/python -c 'import importlib.util as find, sys; sys.exit(find.find_spec("tensorflow") is None)'; then
  if apt-get download -qq libhighwayhash-dev libfarmhash-dev && for package in *.deb; do dpkg -x "$package" headers; done; then
    tensorflow=HOROVOD_WITH_TENSORFLOW=1
  else
    echo "Horovod is built without TensorFlow: libhighwayhash-dev and libfarmhash-dev cannot be had from apt-get" >&2
  fi
fi
cd horovod-0.28.1
env PATH="$folder/venv/bin:$PATH" CPATH="$folder/headers/usr/include" MAKEFLAGS=-j2 $tensorflow \
  HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
  ../venv/bin/python -m pip install --quiet --no-build-isolation --no-deps .
touch "$folder/done"
