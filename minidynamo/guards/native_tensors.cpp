// Checks whether tensors are unchanged since torch's checker accepted them, by comparing memory.
//
// Nothing is interpreted here: native_tensors.py found, by changing tensors, the words of memory that the checker
// reads, and recorded their values. While the words are unchanged, so is the answer, except for thread state (inference
// mode, autocast, ...): torch checks one tensor of each kind for that, and all tensors without a record. If anything
// differs, torch checks all tensors.
#include "launch.h"

struct PyObject {
  int64_t references;
  PyObject* type;
};
extern "C" {
extern PyObject _Py_TrueStruct;
char* PyByteArray_AsString(PyObject*);
PyObject* PyList_GetItem(PyObject*, int64_t);
PyObject* PyTuple_GetItem(PyObject*, int64_t);
PyObject* PyObject_Vectorcall(PyObject*, PyObject* const*, uint64_t, PyObject*);
void Py_DecRef(PyObject*);
}

// The fields of native_tensors.py: _HEADER, _RECORD.
static constexpr int64_t LAYOUT_WORDS = 15, HISTORY_WORDS = 3;

// The recorded words of a tensor; a null `object` means no record, and torch checks the tensor.
struct Record {
  PyObject* object;
  PyObject* type;
  uint64_t* impl;
  uint64_t impl_class;
  uint64_t layout[LAYOUT_WORDS];
  uint64_t* autograd;  // null for a tensor without autograd state
  uint64_t autograd_class;
  uint64_t history[HISTORY_WORDS];
};

// The offsets of the words, and the number of calls served. The records follow, then the positions of the tensors that
// torch checks.
struct Snapshot {
  int64_t count, asked, served;
  int64_t impl_at, layout_at, autograd_at, history_at[HISTORY_WORDS];
  Record* records() { return (Record*)(this + 1); }
  int64_t* positions() { return (int64_t*)(records() + count); }
};

// The distance, in records, of prefetches.
static constexpr int64_t AHEAD = 6;

static bool is_unchanged(const Snapshot& snapshot, const Record& was, PyObject* tensor) {
  if (tensor != was.object || tensor->type != was.type) return false;
  auto* impl = ((uint64_t**)tensor)[snapshot.impl_at];
  if (impl != was.impl || impl[0] != was.impl_class) return false;
  uint64_t differs = 0;
  for (int64_t k = 0; k < LAYOUT_WORDS; k++) differs |= impl[snapshot.layout_at + k] ^ was.layout[k];
  auto* autograd = ((uint64_t**)impl)[snapshot.autograd_at];
  if (differs || autograd != was.autograd) return false;
  if (!autograd) return true;
  differs = autograd[0] ^ was.autograd_class;
  for (int64_t k = 0; k < HISTORY_WORDS; k++) differs |= autograd[snapshot.history_at[k]] ^ was.history[k];
  return !differs;
}

// Tensors with unchanged addresses are as distinct as before; a tensor without a record is compared with all others.
static bool is_another(PyObject* const* tensors, int64_t count, int64_t position) {
  bool is_same = false;
  for (int64_t k = 0; k < count; k++) is_same |= k != position && tensors[k] == tensors[position];
  return !is_same;
}

static bool are_unchanged(Snapshot& snapshot, PyObject* const* tensors, int64_t count) {
  if (count != snapshot.count) return false;
  Record* records = snapshot.records();
  for (int64_t k = 0; k < count; k++) {
    if (k + AHEAD < count) {  // prefetching a stale address is harmless
      __builtin_prefetch(records[k + AHEAD].impl);
      __builtin_prefetch((char*)records[k + AHEAD].impl + 128);
      __builtin_prefetch((char*)records[k + AHEAD].autograd + 128);
    }
    if (records[k].object ? !is_unchanged(snapshot, records[k], tensors[k]) : !is_another(tensors, count, k))
      return false;
  }
  return true;
}

// Arguments: a list with a tuple (snapshot, torch's checker of `asked` tensors), the fallback, the tensors.
EXPORT PyObject* check(PyObject*, PyObject* const* args, int64_t count) {
  PyObject* const* tensors = args + 2;
  count -= 2;
  PyObject* known = PyList_GetItem(args[0], 0);  // another thread may replace the tuple
  Py_IncRef(known);
  auto* snapshot = (Snapshot*)PyByteArray_AsString(PyTuple_GetItem(known, 0));
  bool holds = are_unchanged(*snapshot, tensors, count);
  PyObject* answer = nullptr;
  if (holds) {
    PyObject* asked[snapshot->asked];
    for (int64_t k = 0; k < snapshot->asked; k++) asked[k] = tensors[snapshot->positions()[k]];
    answer = PyObject_Vectorcall(PyTuple_GetItem(known, 1), asked, snapshot->asked, nullptr);
    snapshot->served += answer == &_Py_TrueStruct;
  }
  Py_DecRef(known);
  if (holds && (!answer || answer == &_Py_TrueStruct)) return answer;
  Py_DecRef(answer);
  return PyObject_Vectorcall(args[1], tensors, count, nullptr);
}
