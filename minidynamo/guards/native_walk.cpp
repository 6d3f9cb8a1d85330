// Runs a walk of minidynamo/guards/walk.py: interprets its steps, or calls the walk's text.
//
// Accepts a state only when certain: containers must be exactly a dict, an OrderedDict, a list or a tuple. In all other
// cases, and after any failed check, the text decides. So no user code runs, except where the text would run it as
// well: when dict keys other than texts must be compared.
#include "launch.h"

// As in CPython's headers; native_walk.py checks the layout. Each change of a dict gives it a new, unique tag: while
// the tag is unchanged, so is the dict. If the attributes of an instance are stored in the instance (`values`), Python
// 3.13 does not maintain the tag; but such a dict has text keys, and its values are one short array, in the order of
// the keys, to which the class only ever adds.
struct PyObject {
  int64_t references;
  PyObject* type;
};
struct Values {
  uint8_t capacity;
  PyObject* items[];
};
struct Dict : PyObject {
  int64_t length;
  uint64_t tag;
  void* keys;
  Values* values;
};
extern "C" {
extern PyObject PyCell_Type, PyDict_Type, PyODict_Type, PyList_Type, PyTuple_Type, PyUnicode_Type;
char* PyByteArray_AsString(PyObject*);
int64_t PyByteArray_Size(PyObject*);
PyObject* PyCell_Get(PyObject*);
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
  START, DICTIONARY, ITEM, ELEMENT, KEEP, TYPE, IDENTITY, EQUALS, LENGTH, KEYS, HAS_KEY, MISSING_KEY, ITEM_LENGTH,
  CELL
};

struct Step {
  int16_t op, depth;
  int32_t number;
  PyObject* expected;
  // The item under the key `expected` at the time of `tag`; null for a missing key.
  uint64_t tag;
  PyObject* item;
};

// The attributes of an instance as last seen, with a tag of our own. Only addresses are compared: each step that uses
// an attribute checks its contents.
struct Seen {
  static constexpr int64_t MOST = 30;
  uint64_t tag;
  void* keys;
  PyObject* items[MOST];
};

// The order of native_walk.Tags: which dicts have a tag to rely on.
enum Tags { NONE, WITHOUT_VALUES, ALL };

// `seen` elements follow the steps: one for each DICTIONARY step if attribute dicts have no tags, else none.
struct Program {
  int64_t tags, length, steps, seen;
  Step* first() { return (Step*)(this + 1); }
  Step* end() { return first() + steps; }
  Seen* first_seen() { return seen ? (Seen*)end() : nullptr; }
};

// Two modes of a walk. With tags no code can run, so no references are held; after a mismatch, BY_LOOKING repeats the
// walk.
enum Mode { BY_TAGS, BY_LOOKING };

// The value at each depth of the walk.
template <Mode MODE> struct Path {
  static constexpr int64_t MAX_DEPTH = 32;
  PyObject* at[MAX_DEPTH] = {};
  Seen* attributes[MAX_DEPTH];  // the instance whose attribute dict the value is, if without a tag; or null
  Seen* const seen;
  const bool all_have_tags;

  Path(Program* program) : seen(program->first_seen()), all_have_tags(program->tags == ALL) {}

  bool put(int64_t depth, PyObject* value) {
    if (MODE == BY_LOOKING) Py_IncRef(value);
    return put_new(depth, value, MODE == BY_LOOKING);
  }

  // Takes over a reference, if there is one.
  bool put_new(int64_t depth, PyObject* value, bool is_new = true) {
    PyObject* before = at[depth];
    at[depth] = value;
    attributes[depth] = nullptr;
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

// Returns null if the object of the step has died.
static PyObject* referred(const Step& step) {
  PyObject* object = step.number ? PyWeakref_GetObject(step.expected) : step.expected;
  return step.number && object == &_Py_NoneStruct ? nullptr : object;
}

// Only exact dicts: an OrderedDict has a separate order.
static bool has_keys(PyObject* v, PyObject* keys) {
  if (v->type != &PyDict_Type || ((Dict*)v)->length != PyTuple_Size(keys)) return false;
  PyObject* key;
  for (int64_t position = 0, k = 0; PyDict_Next(v, &position, &key, nullptr); k++) {
    PyObject* expected = PyTuple_GetItem(keys, k);
    if (key != expected && (key->type != &PyUnicode_Type || PyUnicode_Compare(key, expected))) return false;
  }
  return true;
}

// Our tags differ from Python's tags, and each is used once.
static uint64_t new_tag() {
  static uint64_t last = uint64_t(1) << 63;
  return ++last;
}

// Returns the tag of an instance's attributes, a new tag if they changed; 0 if they cannot be recorded.
static uint64_t tag_now(Seen& seen, Dict* dict) {
  Values* values = dict->values;
  if (!values || values->capacity > Seen::MOST) return seen.tag = 0;
  uint64_t differs = seen.tag == 0 || seen.keys != dict->keys;
  for (int64_t k = 0; k < values->capacity; k++) differs |= (uint64_t)seen.items[k] ^ (uint64_t)values->items[k];
  if (!differs) return seen.tag;
  seen.keys = dict->keys;
  for (int64_t k = 0; k < values->capacity; k++) seen.items[k] = values->items[k];
  return seen.tag = new_tag();
}

// Sets `item`. Returns false if v is no dict, or the tag is unknown.
template <Mode MODE> static bool look_up(Step& step, const Path<MODE>& path) {
  PyObject* v = path.at[step.depth];
  if (!is_dict(v)) return false;
  Seen* seen = path.attributes[step.depth];
  bool is_untagged = !path.all_have_tags && ((Dict*)v)->values;
  uint64_t tag = !is_untagged ? ((Dict*)v)->tag : !seen ? 0 : MODE == BY_TAGS ? seen->tag : tag_now(*seen, (Dict*)v);
  if (MODE == BY_TAGS && tag && step.tag == tag) return true;
  if (MODE == BY_TAGS && !is_untagged) return false;
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
    case DICTIONARY: {
      PyObject* attributes = PyObject_GenericGetDict(v, nullptr);
      if (!path.put_new(below, attributes)) return false;
      if (!path.seen || !is_dict(attributes)) return true;
      path.attributes[below] = path.seen + step.number;
      tag_now(*path.attributes[below], (Dict*)attributes);
      return true;
    }
    case CELL: return v->type == &PyCell_Type && path.put_new(below, PyCell_Get(v));
    case ITEM: return look_up(step, path) && path.put(below, step.item);
    case ELEMENT: return path.put(below, element(v, step.number));
    case TYPE: return v->type == referred(step);
    case IDENTITY: return v == referred(step);
    case EQUALS: return v->type == step.expected->type && PyObject_RichCompareBool(v, step.expected, 2) == 1;
    case LENGTH: return length(v) == step.number;
    case KEYS: return has_keys(v, step.expected);
    case HAS_KEY: return look_up(step, path) && step.item;
    case MISSING_KEY: return look_up(step, path) && !step.item;
    case ITEM_LENGTH: return look_up(step, path) && step.item && length(step.item) == step.number;
  }
  return false;
}

template <Mode MODE> static bool goes(Program* program, PyObject* const* args, PyObject* result) {
  Path<MODE> path(program);
  for (Step* step = program->first(); step < program->end(); step++) {
    if (step->op == START) {
      PyObject* start = step->number >= 0 ? args[step->number]
                        : step->number == -1 ? step->expected : PyWeakref_GetObject(step->expected);
      if (step->number == -2 && start == &_Py_NoneStruct) return false;
      path.put(0, start);
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

// The garbage collector could run when a __dict__ is created.
static bool goes_by_tags(Program* program, PyObject* const* args, PyObject* result) {
  int collects = PyGC_Disable();
  bool holds = goes<BY_TAGS>(program, args, result);
  if (collects) PyGC_Enable();
  return holds;
}

// Arguments: the program, a tuple that keeps its objects alive, the text's function, its arguments.
EXPORT PyObject* walk(PyObject*, PyObject* const* args, int64_t count) {
  auto* program = (Program*)PyByteArray_AsString(args[0]);
  PyObject* result = PyTuple_New(program->length);
  if (!result) return nullptr;
  if (program->tags != NONE && goes_by_tags(program, args + 3, result)) return result;
  if (goes<BY_LOOKING>(program, args + 3, result)) return result;
  PyErr_Clear();
  Py_DecRef(result);
  return PyObject_Vectorcall(args[2], args + 3, count - 3, nullptr);
}
