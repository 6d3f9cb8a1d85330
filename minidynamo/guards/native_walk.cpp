// A walk of minidynamo/guards/walk.py: goes through its steps, or leaves the call to the walk's text.
//
// It says that everything is as it was only when it is sure: what it has to look into must be exactly a dict, an
// OrderedDict, a list or a tuple. On anything else, and on whatever differs, the text decides. So it runs no code of
// the user's, except where the text would as well: when keys of a dict that are no texts have to be compared.
#include "launch.h"

// As in CPython's headers; native_walk.py makes sure that it is so. Each change of a dict gives it a tag that no dict
// has had before: while the tag is the same, the dict is, with all that it holds. Where the attributes of an instance
// are stored in it (`values`), Python 3.13 forgets about the tag; but such a dict has texts for keys.
struct PyObject {
  int64_t references;
  PyObject* type;
};
struct Dict : PyObject {
  int64_t length;
  uint64_t tag;
  void *keys, *values;
};
extern "C" {
extern PyObject PyDict_Type, PyODict_Type, PyList_Type, PyTuple_Type, PyUnicode_Type;
char* PyByteArray_AsString(PyObject*);
int64_t PyByteArray_Size(PyObject*);
PyObject* PyDict_GetItemWithError(PyObject*, PyObject*);
int PyDict_Next(PyObject*, int64_t*, PyObject**, PyObject**);
void PyErr_Clear();
PyObject* PyErr_Occurred();
int PyGC_Disable();
int PyGC_Enable();
PyObject* PyList_GetItem(PyObject*, int64_t);
int64_t PyList_Size(PyObject*);
PyObject* PyObject_GenericGetDict(PyObject*, void*);
int PyObject_RichCompareBool(PyObject*, PyObject*, int);
PyObject* PyObject_Vectorcall(PyObject*, PyObject* const*, uint64_t, PyObject*);
PyObject* PyTuple_GetItem(PyObject*, int64_t);
PyObject* PyTuple_New(int64_t);
int PyTuple_SetItem(PyObject*, int64_t, PyObject*);
int64_t PyTuple_Size(PyObject*);
int PyUnicode_Compare(PyObject*, PyObject*);
PyObject* PyWeakref_GetObject(PyObject*);
void Py_DecRef(PyObject*);
}

// The order of walk.Op.
enum Op {
  START, DICTIONARY, ITEM, ELEMENT, KEEP, TYPE, IDENTITY, EQUALS, LENGTH, KEYS, HAS_KEY, MISSING_KEY, ITEM_LENGTH
};

struct Step {
  int16_t op, depth;
  int32_t number;
  PyObject* expected;
  // What a dict had under the key `expected`, null for nothing, and its tag then.
  uint64_t tag;
  PyObject* item;
};

// The order of native_walk.Tags: which dicts have a tag to rely on.
enum Tags { NONE, WITHOUT_VALUES, ALL };

struct Program {
  int64_t tags, length;
  Step steps[];
};

// How a walk goes. By tags, no code can run, so that nothing has to be held, and what differs is looked up afterwards.
enum Mode { BY_TAGS, BY_TAGS_WITHOUT_VALUES, BY_LOOKING };

// The values on the way to where the walk is.
template <Mode MODE> struct Path {
  static constexpr int64_t MAX_DEPTH = 32;
  PyObject* at[MAX_DEPTH] = {};

  bool put(int64_t depth, PyObject* value) {
    if (MODE == BY_LOOKING) Py_IncRef(value);
    return put_new(depth, value, MODE == BY_LOOKING);
  }

  // Takes over a reference, if there is one.
  bool put_new(int64_t depth, PyObject* value, bool is_new = true) {
    PyObject* before = at[depth];
    at[depth] = value;
    if (is_new) Py_DecRef(MODE == BY_LOOKING ? before : value);
    return value;
  }

  ~Path() {
    if (MODE == BY_LOOKING)
      for (PyObject* value : at) Py_DecRef(value);
  }
};

static bool is_dict(PyObject* v) { return v->type == &PyDict_Type || v->type == &PyODict_Type; }

static PyObject* element(PyObject* v, int64_t index) {
  if (v->type == &PyList_Type) return PyList_GetItem(v, index);
  return v->type == &PyTuple_Type ? PyTuple_GetItem(v, index) : nullptr;
}

static int64_t length(PyObject* v) {
  if (is_dict(v)) return ((Dict*)v)->length;
  if (v->type == &PyList_Type) return PyList_Size(v);
  return v->type == &PyTuple_Type ? PyTuple_Size(v) : -1;
}

// Null when what the step refers to has died.
static PyObject* referred(const Step& step) {
  PyObject* object = step.number ? PyWeakref_GetObject(step.expected) : step.expected;
  return step.number && object == &_Py_NoneStruct ? nullptr : object;
}

// An OrderedDict has an order of its own.
static bool has_keys(PyObject* v, PyObject* keys) {
  if (v->type != &PyDict_Type || ((Dict*)v)->length != PyTuple_Size(keys)) return false;
  PyObject* key;
  for (int64_t position = 0, k = 0; PyDict_Next(v, &position, &key, nullptr); k++) {
    PyObject* expected = PyTuple_GetItem(keys, k);
    if (key != expected && (key->type != &PyUnicode_Type || PyUnicode_Compare(key, expected))) return false;
  }
  return true;
}

// Sets `item`. False when v is no dict, or does not tell.
template <Mode MODE> static bool look_up(Step& step, PyObject* v) {
  if (!is_dict(v)) return false;
  uint64_t tag = ((Dict*)v)->tag;
  bool has_tag = MODE == BY_TAGS || (MODE == BY_TAGS_WITHOUT_VALUES && !((Dict*)v)->values);
  if (has_tag) return step.tag == tag;
  PyObject* item = PyDict_GetItemWithError(v, step.expected);
  if (!item && PyErr_Occurred()) return false;
  step.tag = tag;
  step.item = item;
  return true;
}

template <Mode MODE> static bool holds(Step& step, Path<MODE>& path) {
  PyObject* v = path.at[step.depth];
  int64_t below = step.depth + 1;
  switch (step.op) {
    case DICTIONARY: return path.put_new(below, PyObject_GenericGetDict(v, nullptr));
    case ITEM: return look_up<MODE>(step, v) && path.put(below, step.item);
    case ELEMENT: return path.put(below, element(v, step.number));
    case TYPE: return v->type == referred(step);
    case IDENTITY: return v == referred(step);
    case EQUALS: return v->type == step.expected->type && PyObject_RichCompareBool(v, step.expected, 2) == 1;
    case LENGTH: return length(v) == step.number;
    case KEYS: return has_keys(v, step.expected);
    case HAS_KEY: return look_up<MODE>(step, v) && step.item;
    case MISSING_KEY: return look_up<MODE>(step, v) && !step.item;
    case ITEM_LENGTH: return look_up<MODE>(step, v) && step.item && length(step.item) == step.number;
  }
  return false;
}

template <Mode MODE> static bool goes(Step* step, Step* end, PyObject* const* args, PyObject* result) {
  Path<MODE> path;
  for (; step < end; step++) {
    if (step->op == START) {
      path.put(0, step->number < 0 ? step->expected : args[step->number]);
    } else if (step->op == KEEP) {
      PyObject* value = path.at[step->depth];
      Py_IncRef(value);
      PyTuple_SetItem(result, step->number, value);
    } else if (!holds(*step, path)) {
      return false;
    }
  }
  return true;
}

// A collector could run when a __dict__ has to be made.
template <Mode MODE> static bool goes_uncollected(Step* step, Step* end, PyObject* const* args, PyObject* result) {
  int collects = PyGC_Disable();
  bool holds = goes<MODE>(step, end, args, result);
  if (collects) PyGC_Enable();
  return holds;
}

// Arguments: the program, what keeps alive that it points to, the text, its arguments.
EXPORT PyObject* walk(PyObject*, PyObject* const* args, int64_t count) {
  auto* program = (Program*)PyByteArray_AsString(args[0]);
  Step* end = program->steps + (PyByteArray_Size(args[0]) - sizeof(Program)) / sizeof(Step);
  auto goes_by_tags = program->tags == ALL ? goes_uncollected<BY_TAGS> : goes_uncollected<BY_TAGS_WITHOUT_VALUES>;
  PyObject* result = PyTuple_New(program->length);
  if (!result) return nullptr;
  if (program->tags != NONE && goes_by_tags(program->steps, end, args + 3, result)) return result;
  if (goes<BY_LOOKING>(program->steps, end, args + 3, result)) return result;
  PyErr_Clear();
  Py_DecRef(result);
  return PyObject_Vectorcall(args[2], args + 3, count - 3, nullptr);
}
