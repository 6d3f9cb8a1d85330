// The entry of kernels from Python, and their use of several threads.
//
// No header of Python, torch, OpenMP or the C++ library is needed: the few functions in use are declared here. The
// functions of the OpenMP runtime are pointers, which the loader sets to the runtime that torch itself has loaded. So a
// process never has a second runtime, a library in the cache depends on no path, and compiling takes a tenth of a
// second.
#pragma once

typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;

// A source with many kernels is compiled PARTS times at once, each time a part of the kernels: kernel k is in part
// k % PARTS.
#ifndef PARTS
#define PARTS 1
#define PART 0
#endif
#define IN_PART(kernel) ((kernel) % PARTS == PART)

#define EXPORT extern "C" __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

// ---- the part of Python's stable C interface in use ----
struct PyObject;
extern "C" {
void* PyLong_AsVoidPtr(PyObject*);
long long PyLong_AsLongLong(PyObject*);
double PyFloat_AsDouble(PyObject*);
void Py_IncRef(PyObject*);
PyObject* PyErr_Occurred();
PyObject* PyObject_CallMethod(PyObject*, const char*, const char*, ...);
void Py_DecRef(PyObject*);
void PyErr_SetString(PyObject*, const char*);
PyObject* PyErr_Format(PyObject*, const char*, ...);
extern PyObject _Py_NoneStruct;
extern PyObject *PyExc_IndexError, *PyExc_RuntimeError;
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
}

// An entry point: a function that Python calls with tensors, then with numbers (METH_FASTCALL).
#define ENTRY(name) EXPORT PyObject* name(PyObject*, PyObject* const* args, int64_t)

template <class T> INLINE T* address(PyObject* number) { return (T*)PyLong_AsVoidPtr(number); }

INLINE int64_t integer(PyObject* number) { return PyLong_AsLongLong(number); }
INLINE double real(PyObject* number) { return PyFloat_AsDouble(number); }

// ---- the memory of tensors ----
// How to find the memory of a tensor of torch; the loader fills the record. torch's C function takes a twentieth of the
// time of the method `data_ptr`. Its argument, an `at::Tensor*`, is `offset` bytes after the start of the Python object
// of a tensor. For objects of other classes, and if `find` is null, the method is called.
struct Tensors {
  int32_t (*find)(void* tensor, void** memory);  // aoti_torch_get_data_ptr
  int64_t offset;
  const void *tensor, *parameter;  // classes
};
EXPORT Tensors minidynamo_tensors;
#if PART == 0
Tensors minidynamo_tensors = {};
#endif

// The address of a tensor's memory. After an error, it is null, and Python's error is set. Not inlined: a kernel has many
// arguments, and compiling a copy for each takes a third of the time of a build.
static __attribute__((noinline, unused)) void* address_of(PyObject* tensor) {
  const Tensors& known = minidynamo_tensors;
  const void* type = ((void**)tensor)[1];
  void* found;
  if (known.find && (type == known.tensor || type == known.parameter) &&
      !known.find((char*)tensor + known.offset, &found))
    return found;
  PyObject* number = PyErr_Occurred() ? nullptr : PyObject_CallMethod(tensor, "data_ptr", nullptr);
  if (!number) return nullptr;
  found = PyLong_AsVoidPtr(number);
  Py_DecRef(number);
  return found;
}

template <class T> INLINE T* memory(PyObject* tensor) { return (T*)address_of(tensor); }

// The result of a kernel. A caller that has read arguments checks for errors first, such as too large a number.
INLINE PyObject* none() {
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

// Errors that a kernel finds too late to stop; then its results are undefined, but memory outside is not touched.
enum Reason {
  INDEX_OUT_OF_RANGE = 1,
  DIVISION_BY_ZERO,
  SUBSCRIPT_OUT_OF_RANGE,
  TARGET_OUT_OF_RANGE,
  GATHER_OUT_OF_RANGE,
  DATA_OUT_OF_BOUNDS,
};
struct Failure {
  int reason;  // 0: no failure
  int64_t index, dimension, size;
};

INLINE PyObject* result(const Failure& failed) {
  const char* with_number = "index %lld is out of bounds for dimension %lld with size %lld";
  long long index = failed.index, dimension = failed.dimension, size = failed.size;
  // The messages of torch's own kernels
  switch (failed.reason) {
    case 0: return none();
    case INDEX_OUT_OF_RANGE: PyErr_SetString(PyExc_IndexError, "index out of range in self"); break;
    case TARGET_OUT_OF_RANGE: PyErr_Format(PyExc_IndexError, "Target %lld is out of bounds.", index); break;
    case SUBSCRIPT_OUT_OF_RANGE:  // a negative index has been counted from the end
      PyErr_Format(PyExc_IndexError, with_number, index < 0 ? index - size : index, dimension, size);
      break;
    case GATHER_OUT_OF_RANGE: PyErr_Format(PyExc_RuntimeError, with_number, index, dimension, size); break;
    case DATA_OUT_OF_BOUNDS:
      PyErr_Format(PyExc_RuntimeError, "INDICES element is out of DATA bounds, id=%lld axis_dim=%lld", index, size);
      break;
    default: PyErr_SetString(PyExc_RuntimeError, "ZeroDivisionError");
  }
  return nullptr;
}

// Other Python threads run in its scope; close the scope before making a Python object.
struct WithoutGil {
  void* state = PyEval_SaveThread();
  ~WithoutGil() { PyEval_RestoreThread(state); }
};

// ---- threads; all four are null in a torch without OpenMP, and kernels then run on one thread ----
// A record with a name of ours: a global named like a function of OpenMP could be bound to this function.
struct Threading {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
  int (*thread)();
  int (*threads)();
  int (*torch_threads)();
};
EXPORT Threading minidynamo_threading;
#if PART == 0
Threading minidynamo_threading = {};
#endif

struct ParallelWork {
  void (*body)(const void* context, int64_t begin, int64_t end);
  const void* context;
  int64_t count;
};

static void run_part(void* data) {
  const auto& work = *(const ParallelWork*)data;
  int64_t thread = minidynamo_threading.thread(), threads = minidynamo_threading.threads();
  int64_t begin = work.count * thread / threads, end = work.count * (thread + 1) / threads;
  if (begin < end) work.body(work.context, begin, end);
}

static __attribute__((noinline, unused)) void run_on_threads(int threads, ParallelWork work) {
  if (!minidynamo_threading.parallel) threads = 1;
  if (threads == 0) threads = minidynamo_threading.torch_threads();
  if (threads > work.count) threads = (int)work.count;
  if (threads < 2) return work.body(work.context, 0, work.count);
  minidynamo_threading.parallel(run_part, &work, (unsigned)threads, 0);
}

// Calls body(begin, end) on contiguous parts of [0, count), on `threads` threads or, if 0, on as many as torch uses.
// The body is compiled once, for one thread and for several.
template <class Body> INLINE void parallel_for(int64_t count, int threads, const Body& body) {
  auto call = [](const void* context, int64_t begin, int64_t end) { (*(const Body*)context)(begin, end); };
  run_on_threads(threads, {call, &body, count});
}
