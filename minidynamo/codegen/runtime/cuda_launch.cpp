// Launches a kernel on an NVIDIA GPU: one call from Python per launch, which makes one call of the driver.
#include "launch.h"

extern "C" {
PyObject* PyTuple_GetItem(PyObject*, int64_t);
char* PyBytes_AsString(PyObject*);
PyObject* PyObject_Vectorcall(PyObject*, PyObject* const*, uint64_t, PyObject*);
}

// Packed by `cuda_launch.py`.
struct Record {
  int (*start)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void* stream,
               void** parameters, void** extra);  // cuLaunchKernel
  void* function;
  int64_t rows_per_block, threads, shared_memory, pointers, numbers, scratch;
  uint64_t reals;  // which numbers are floats
};

// Arguments: the stream, the number of rows, addresses and numbers. `self` holds the record, and the function to call
// instead if an address is not a multiple of 16: the kernel is compiled for multiples of 16.
EXPORT PyObject* launch(PyObject* self, PyObject* const* args, int64_t count) {
  const auto& record = *(const Record*)PyBytes_AsString(PyTuple_GetItem(self, 0));
  const int64_t own = record.pointers + record.numbers, all = own + record.scratch;
  auto* values = (int64_t*)__builtin_alloca(all * sizeof(int64_t));
  auto** parameters = (void**)__builtin_alloca(all * sizeof(void*));
  if (count != own + 2) {
    PyErr_SetString(PyExc_RuntimeError, "a kernel was started with too few or too many arguments");
    return nullptr;
  }
  auto* stream = address<void>(args[0]);
  const int64_t rows = integer(args[1]);
  uint64_t places = 0;
  for (int64_t k = 0; k < all; k++) {
    parameters[k] = &values[k];
    if (k < record.pointers) {
      values[k] = (int64_t)address<void>(args[k + 2]);
      places |= (uint64_t)values[k];
    } else if (k >= own) {
      values[k] = 0;
    } else if (record.reals >> (k - record.pointers) & 1) {
      const double value = real(args[k + 2]);
      __builtin_memcpy(&values[k], &value, sizeof(value));
    } else {
      values[k] = integer(args[k + 2]);
    }
  }
  if (PyErr_Occurred()) return nullptr;
  if (rows <= 0) return none();
  if (places % 16) return PyObject_Vectorcall(PyTuple_GetItem(self, 1), args, (uint64_t)count, nullptr);
  const auto blocks = (uint64_t)((rows + record.rows_per_block - 1) / record.rows_per_block);
  int status = 1;  // invalid value
  if (blocks < 1ull << 31) {
    WithoutGil others;
    status = record.start(record.function, (unsigned)blocks, 1, 1, (unsigned)record.threads, 1, 1,
                          (unsigned)record.shared_memory, stream, parameters, nullptr);
  }
  if (status == 0) return none();
  PyErr_Format(PyExc_RuntimeError, "CUDA error %lld when a kernel was started", (long long)status);
  return nullptr;
}
