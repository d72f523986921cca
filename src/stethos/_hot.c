/* What runs in every training step, without the interpreter.
 *
 * The same work as `observe/hotpath.py` and `record/ring.py`, which say what it means and are used where this
 * could not be built. Inside a step the caches are cold, so that a callback costs what it touches; here that is a few
 * structures instead of bytecode, frames and boxed numbers. Every turn that is not taken in nearly every step calls the
 * method of the Python class. What is shared with Python is kept in fields of C types that its classes derive from.
 *
 * Rules: the GIL is held throughout and is what makes taking a slot atomic; no exception of ours gets out but those
 * that the guard lets out (Ctrl-C, and everything in strict mode); every object used after a call into Python is owned.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include "_hot.h"

#define LONG_NS 1000000000LL /* as in hotpath.py */

/* The clock of `time.perf_counter_ns`. A test may let it tick instead: each look is then one tick later. */
static int64_t tick_ns, ticked_ns;

static inline int64_t
now_ns(void)
{
    if (tick_ns)
        return ticked_ns += tick_ns;
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * 1000000000LL + at.tv_nsec;
}

/* Names and types looked up once for each interpreter. */
#define NAMES(on)                                                                                                      \
    on(lr) on(param_groups) on(_num_yielded) on(get) on(iteration) on(failed) on(beat) on(samples_in) on(batch_came)   \
    on(odd_loss) on(add_loss) on(backward_ended) on(tracer) on(backward_begins) on(numel) on(is_complex) on(run)       \
    on(guard) on(is_inside) on(enter) on(has_closure) on(sample) on(mark) on(reopen) on(number_of) on(take_turn)       \
    on(add) on(put_later) on(account) on(tensors) on(grad_tensors) on(__qualname__) on(loss_broke)
#define FIELD_TYPES(on)                                                                                                \
    on(Alarm, alarm) on(Watched, watched) on(Iteration, iteration) on(Iterations, iterations) on(Session, session)     \
    on(Recorder, recorder)
#define CALLBACKS(on) on(NextBatch) on(Backward) on(StepBegins) on(StepEnded)

typedef struct {
    PyTypeObject *slots;
#define TYPE(Name, name) PyTypeObject *name;
    FIELD_TYPES(TYPE)
#undef TYPE
#define TYPE(Name) PyTypeObject *Name;
    CALLBACKS(TYPE)
#undef TYPE
    struct {
#define NAME(name) PyObject *name;
        NAMES(NAME)
#undef NAME
    } names;
} State;

static struct PyModuleDef hot_module;

/* Fields that Python's classes inherit, as native.py lists them --------------------------------------------- */

/* A truth is taken from anything that has one, as Python's attributes would. */
static PyObject *
truth_get(PyObject *self, void *offset)
{
    return PyBool_FromLong(*((char *)self + (intptr_t)offset));
}

static int
truth_set(PyObject *self, PyObject *value, void *offset)
{
    int truth = value ? PyObject_IsTrue(value) : 0;
    if (truth < 0)
        return -1;
    *((char *)self + (intptr_t)offset) = (char)truth;
    return 0;
}

/* An object of one of our classes, or None: looked at when it is put in, as that is rare. */
typedef struct {
    size_t offset, type; /* of the field, and of its type in the module's state */
} Own;

static PyObject *
own_get(PyObject *self, void *own)
{
    PyObject *value = *(PyObject **)((char *)self + ((const Own *)own)->offset);
    return Py_NewRef(value ? value : Py_None);
}

static int
own_set(PyObject *self, PyObject *value, void *own)
{
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(self), &hot_module), **field;
    State *state = module ? PyModule_GetState(module) : NULL;
    if (state == NULL)
        return -1;
    PyTypeObject *type = *(PyTypeObject **)((char *)state + ((const Own *)own)->type);
    if (value == Py_None)
        value = NULL;
    if (value != NULL && !PyObject_TypeCheck(value, type)) {
        PyErr_Format(PyExc_TypeError, "%s or None, not %s", type->tp_name, Py_TYPE(value)->tp_name);
        return -1;
    }
    field = (PyObject **)((char *)self + ((const Own *)own)->offset);
    Py_XINCREF(value);
    Py_XSETREF(*field, value);
    return 0;
}

#define OWN(type_, name, class_)                                                                                       \
    {#name, own_get, own_set, NULL, &(Own){offsetof(type_, name), offsetof(State, class_)}}
#define TRUTH(type, name) {#name, truth_get, truth_set, NULL, (void *)offsetof(type, name)}

#define FIELDS_TYPE(Name, in_state)                                                                                    \
    static PyMemberDef Name##_members[] = {Name##_MEMBERS {NULL}};                                                     \
    static PyGetSetDef Name##_getset[] = {Name##_GETSET {NULL}};                                                       \
    static int Name##_traverse(PyObject *op, visitproc visit, void *arg)                                              \
    {                                                                                                                  \
        Name *self = (Name *)op;                                                                                       \
        (void)self;                                                                                                    \
        Py_VISIT(Py_TYPE(op));                                                                                         \
        Name##_OBJECTS(Py_VISIT)                                                                                                \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static int Name##_clear(PyObject *op)                                                                             \
    {                                                                                                                  \
        Name *self = (Name *)op;                                                                                       \
        (void)self;                                                                                                    \
        Name##_OBJECTS(Py_CLEAR)                                                                                                \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static void Name##_dealloc(PyObject *op)                                                                          \
    {                                                                                                                  \
        PyTypeObject *type = Py_TYPE(op);                                                                              \
        PyObject_GC_UnTrack(op);                                                                                       \
        Name##_clear(op);                                                                                              \
        type->tp_free(op);                                                                                             \
        Py_DECREF(type);                                                                                               \
    }                                                                                                                  \
    static PyType_Slot Name##_slots[] = {                                                                              \
        {Py_tp_traverse, Name##_traverse}, {Py_tp_clear, Name##_clear}, {Py_tp_dealloc, Name##_dealloc},               \
        {Py_tp_members, Name##_members},   {Py_tp_getset, Name##_getset}, {0, NULL},                                   \
    };                                                                                                                 \
    static PyType_Spec Name##_spec = {                                                                                 \
        .name = "stethos._hot." #Name "Fields",                                                                        \
        .basicsize = sizeof(Name),                                                                                     \
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,                                        \
        .slots = Name##_slots,                                                                                         \
    };

FIELD_TYPES(FIELDS_TYPE)

/* Slots of a ring ------------------------------------------------------------------------------------------ */

struct Slots {
    PyObject_HEAD
    Py_buffer map;
    int64_t *words;   /* NULL once released */
    int64_t next;     /* the slot that is taken next */
    int64_t enough;   /* where to look at the reader's tail again */
    int64_t slots, slot_words, first_word;
    int not_a_number; /* the word that counts rows with something else in them */
    PyObject *look;   /* called at `enough`: says where the next one is, or -1 if the ring is full */
};

static PyObject *
Slots_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"look", "map", "base", "slots", "slot_bytes", "not_a_number", NULL};
    PyObject *look, *map;
    long long base, slots, slot_bytes;
    int not_a_number;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOLLLi", names, &look, &map, &base, &slots, &slot_bytes,
                                     &not_a_number))
        return NULL;
    if (base < 0 || slots <= 0 || slot_bytes < 8 + (long long)sizeof(StepRow) || base % 8 || slot_bytes % 8 || not_a_number < 0) {
        PyErr_SetString(PyExc_ValueError, "no such slots");
        return NULL;
    }
    Slots *self = (Slots *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    if (PyObject_GetBuffer(map, &self->map, PyBUF_WRITABLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (self->map.len < base + slots * slot_bytes || 8 * (not_a_number + 1) > base || (uintptr_t)self->map.buf % 8) {
        PyErr_SetString(PyExc_ValueError, "the slots lie outside of the map");
        Py_DECREF(self);
        return NULL;
    }
    self->words = self->map.buf;
    self->slots = slots;
    self->slot_words = slot_bytes / 8;
    self->first_word = base / 8;
    self->not_a_number = not_a_number;
    self->look = Py_NewRef(look);
    return (PyObject *)self;
}

static PyObject *
Slots_release(Slots *self, PyObject *Py_UNUSED(none))
{
    self->words = NULL;
    if (self->map.obj != NULL)
        PyBuffer_Release(&self->map);
    Py_RETURN_NONE;
}

static int
Slots_traverse(Slots *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->look);
    Py_VISIT(self->map.obj);
    return 0;
}

static int
Slots_clear(Slots *self)
{
    self->words = NULL;
    if (self->map.obj != NULL)
        PyBuffer_Release(&self->map);
    Py_CLEAR(self->look);
    return 0;
}

static void
Slots_dealloc(Slots *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Slots_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Whether a slot can be had; -1 with an exception. The reader's tail is looked at rarely: it is another core's. */
static int
has_room(Slots *self)
{
    if (self->words == NULL)
        return 0;
    if (self->next < self->enough)
        return 1;
    if (self->look == NULL)
        return 0;
    PyObject *found = PyObject_CallNoArgs(self->look);
    if (found == NULL)
        return -1;
    long long enough = PyLong_AsLongLong(found);
    Py_DECREF(found);
    if (enough == -1 && PyErr_Occurred())
        return -1;
    self->enough = enough;
    return enough >= 0 && self->words != NULL; /* others may have taken some meanwhile: a ring has a margin for that */
}

static inline int64_t *
taken(Slots *self, int64_t *index)
{
    *index = self->next++;
    return self->words + self->first_word + *index % self->slots * self->slot_words;
}

/* Ask for a slot's memory while there is time, as it was last touched a lap ago. */
static inline void
fetch_ahead(Slots *self)
{
    if (self->words == NULL)
        return;
    const char *slot = (const char *)(self->words + self->first_word + self->next % self->slots * self->slot_words);
    __builtin_prefetch(slot, 1);
    __builtin_prefetch(slot + 64, 1);
    __builtin_prefetch(slot + sizeof(StepRow), 1);
}

static inline void
commit(int64_t *slot, int64_t index)
{
    __atomic_store_n(slot, index + 1, __ATOMIC_RELEASE);
}

static int
put_row(Slots *self, const StepRow *row)
{
    int room = has_room(self);
    if (room <= 0)
        return room;
    int64_t index, *slot = taken(self, &index);
    memcpy(slot + 1, row, sizeof *row);
    commit(slot, index);
    return 1;
}

/* For rows that Python packs: a slot of its own, or -1 where the ring is full. */
static PyObject *
Slots_take(Slots *self, PyObject *Py_UNUSED(none))
{
    int room = has_room(self);
    return room < 0 ? NULL : PyLong_FromLongLong(room ? self->next++ : -1);
}

/* 0 with the slot of this number, or with NULL where the map has been let go; -1 with an exception. */
static int
slot_at(Slots *self, PyObject *number, int64_t *index, int64_t **slot)
{
    *index = PyLong_AsLongLong(number);
    if (*index < 0 && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a slot's number is not below 0");
    if (*index < 0)
        return -1;
    *slot = self->words ? self->words + self->first_word + *index % self->slots * self->slot_words : NULL;
    return 0;
}

static PyObject *
Slots_commit(Slots *self, PyObject *number)
{
    int64_t index, *slot;
    if (slot_at(self, number, &index, &slot) < 0)
        return NULL;
    if (slot != NULL)
        commit(slot, index);
    Py_RETURN_NONE;
}

static PyObject *
Slots_leave_void(Slots *self, PyObject *number)
{
    int64_t index, *slot;
    if (slot_at(self, number, &index, &slot) < 0)
        return NULL;
    if (slot != NULL) {
        memset((char *)slot + 8, 0, 2); /* TABLE_VOID */
        commit(slot, index);
        self->words[self->not_a_number]++;
    }
    Py_RETURN_NONE;
}

static PyMethodDef Slots_methods[] = {
    {"release", (PyCFunction)Slots_release, METH_NOARGS, "Let the map go; nothing is written any more."},
    {"take", (PyCFunction)Slots_take, METH_NOARGS, "The number of a slot for one row, or -1 if the ring is full."},
    {"commit", (PyCFunction)Slots_commit, METH_O, "The row in a slot is whole."},
    {"leave_void", (PyCFunction)Slots_leave_void, METH_O, "A slot holds something that is not a row; it is counted."},
    {NULL},
};
static PyMemberDef Slots_members[] = {
    {"next", T_LONGLONG, offsetof(Slots, next), 0, NULL}, {"enough", T_LONGLONG, offsetof(Slots, enough), 0, NULL}, {NULL},
};
static PyType_Slot Slots_slots[] = {
    {Py_tp_new, Slots_new},         {Py_tp_traverse, Slots_traverse}, {Py_tp_clear, Slots_clear},
    {Py_tp_dealloc, Slots_dealloc}, {Py_tp_methods, Slots_methods},   {Py_tp_members, Slots_members},
    {0, NULL},
};
static PyType_Spec Slots_spec = {
    .name = "stethos._hot.Slots",
    .basicsize = sizeof(Slots),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = Slots_slots,
};

/* What a tensor is made of, as torch tells it in C: the layouts of DLPack 1.x, which do not change within a major version. */
typedef struct {
    void *data;
    struct { int32_t type, number; } device;
    int32_t dimensions;
    struct { uint8_t code, bits; uint16_t lanes; } kind;
    int64_t *shape, *strides;
    uint64_t offset_bytes;
} Described;

typedef int (*Describe)(void *tensor, Described *described); /* -1 with an exception */

typedef struct {
    struct { uint32_t major, minor; } version;
    void *older;
    void *allocate, *from_object, *to_object;
    Describe describe;
    void *work_stream;
} Exchange;

#define EXCHANGE "dlpack_exchange_api"
#define EXCHANGE_MAJOR 1
#define ON_CPU 1
#define IS_FLOAT 2

/* The four callbacks -------------------------------------------------------------------------------------------- */

/* What they are given by name, by `_parts` in hotpath.py: what is wrapped, and functions of torch's and ours. */
#define PARTS(on)                                                                                                      \
    on(original) on(tensor) on(is_training) on(modes) on(item) on(is_cpu) on(is_neg) on(turn) on(mark) on(note_begin)  \
    on(note_end)

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *module;
    State *state; /* the module's */
    Recorder *watch;
    Iterations *local;
    Session *session;
#define PART(name) PyObject *name;
    PARTS(PART)
#undef PART
    lenfunc length; /* of a tensor's first dimension */
    Describe describe; /* NULL where torch is too old for it */
    PyObject *dict, *weak;
} Callback;

/* This thread's iteration, owned; NULL with an exception. */
static inline Iteration *
iteration_of(Callback *self)
{
    Iterations *local = self->local;
    if (local->home_thread == (uint64_t)PyThread_get_thread_ident() && local->home != NULL)
        return (Iteration *)Py_NewRef(local->home);
    PyObject *found = PyObject_GetAttr((PyObject *)local, self->state->names.iteration);
    if (found != NULL && !PyObject_TypeCheck(found, self->state->iteration)) {
        Py_DECREF(found);
        PyErr_SetString(PyExc_TypeError, "no iteration");
        return NULL;
    }
    return (Iteration *)found;
}

static inline int
is_some(PyObject *value)
{
    return value != NULL && value != Py_None;
}

/* Tell the watch of the exception that is set, unless it is one to be let out: 0 if it is settled, else -1. */
static int
settle(Callback *self, const char *place)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL && error != NULL)
        PyException_SetTraceback(error, trace);
    PyObject *name = PyUnicode_FromString(place), *told = NULL;
    if (name != NULL)
        told = PyObject_CallMethodObjArgs((PyObject *)self->watch, self->state->names.failed, name, error, NULL);
    Py_XDECREF(name);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    Py_XDECREF(told);
    return told == NULL ? -1 : 0;
}

/* A call whose result is of no interest: 0, or -1 with an exception. */
static int
done(PyObject *result)
{
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int
truth_of(PyObject *result)
{
    if (result == NULL)
        return -1;
    int truth = PyObject_IsTrue(result);
    Py_DECREF(result);
    return truth;
}

static int
number_of(PyObject *result, int64_t *number)
{
    if (result == NULL)
        return -1;
    *number = PyLong_AsLongLong(result);
    Py_DECREF(result);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int
double_of(PyObject *result, double *number)
{
    if (result == NULL)
        return -1;
    *number = PyFloat_AsDouble(result);
    Py_DECREF(result);
    return *number == -1.0 && PyErr_Occurred() ? -1 : 0;
}

/* Before an exception that is on its way out: call a guarded function all the same. */
static PyObject *
guarded_call(Callback *self, const char *place, PyObject *function, PyObject *a, PyObject *b, PyObject *c)
{
    PyObject *guard = PyObject_GetAttr((PyObject *)self->session, self->state->names.guard), *name = NULL, *result = NULL;
    if (guard != NULL && (name = PyUnicode_FromString(place)) != NULL)
        result = PyObject_CallMethodObjArgs(guard, self->state->names.run, name, function, a, b, c, NULL);
    Py_XDECREF(guard);
    Py_XDECREF(name);
    return result;
}

/* Go on with an exception that was put aside, or with the later one, which then has it as its context. */
static void
take_up(PyObject *type, PyObject *error, PyObject *trace)
{
    if (!PyErr_Occurred()) {
        PyErr_Restore(type, error, trace);
        return;
    }
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *new_type, *new_error, *new_trace;
    PyErr_Fetch(&new_type, &new_error, &new_trace);
    PyErr_NormalizeException(&new_type, &new_error, &new_trace);
    if (trace != NULL && error != NULL)
        PyException_SetTraceback(error, trace);
    if (new_error != NULL && new_error != error && error != NULL)
        PyException_SetContext(new_error, Py_NewRef(error));
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    PyErr_Restore(new_type, new_error, new_trace);
}

/* The oldest of the batches that have come: the number of its samples. There is one. */
static int64_t
drop_batch(Iteration *iteration)
{
    int64_t samples = iteration->ahead[0];
    iteration->batches_ahead -= 1;
    if (iteration->batches_ahead)
        memmove(iteration->ahead, iteration->ahead + 1, (size_t)iteration->batches_ahead * sizeof *iteration->ahead);
    return samples;
}

/* A batch has come. */
static int
note_batch(Callback *self, PyObject *iterator, PyObject *batch, int64_t start_ns)
{
    State *state = self->state;
    Recorder *watch = self->watch;
    int is_training = truth_of(PyObject_CallNoArgs(self->is_training));
    if (is_training < 0)
        return -1;
    if (!is_training || !watch->is_active) /* an evaluation: let it be seen from outside that it goes on */
        return watch->is_active ? done(PyObject_CallMethodNoArgs((PyObject *)watch, state->names.beat)) : 0;
    int64_t yielded;
    if (number_of(PyObject_GetAttr(iterator, state->names._num_yielded), &yielded) < 0)
        return -1;
    if (yielded == 1) {
        PyObject *start = PyLong_FromLongLong(start_ns);
        if (start == NULL)
            return -1;
        PyObject *noted = PyObject_CallFunctionObjArgs(self->note_begin, self->session, iterator, start, NULL);
        Py_DECREF(start);
        if (done(noted) < 0)
            return -1;
    }
    Iteration *iteration = iteration_of(self);
    if (iteration == NULL)
        return -1;
    int64_t now = now_ns();
    iteration->mark_ns = now;
    iteration->batch_data_ns += now - start_ns;
    int result = -1;
    if (now > iteration->account_at_ns + LONG_NS && done(PyObject_CallMethodNoArgs((PyObject *)watch, state->names.beat)) < 0)
        goto out;
    PyObject *first = batch;
    if (PyList_CheckExact(batch))
        first = PyList_GET_SIZE(batch) ? PyList_GET_ITEM(batch, 0) : NULL;
    Py_ssize_t samples = 0;
    if (first != NULL && Py_IS_TYPE(first, (PyTypeObject *)self->tensor) && self->length != NULL) {
        Py_INCREF(first);
        samples = self->length(first);
        Py_DECREF(first);
        if (samples < 0)
            PyErr_Clear();
    }
    int64_t counted = samples;
    if (samples <= 0 && number_of(PyObject_CallMethodOneArg((PyObject *)watch, state->names.samples_in, batch), &counted) < 0)
        goto out;
    if (yielded == 1 || iteration->batch_source != (int64_t)(intptr_t)iterator) {
        iteration->batch_source = (int64_t)(intptr_t)iterator;
        iteration->batches_ahead = 0;
    }
    if (iteration->batches_ahead == MOST_AHEAD)
        drop_batch(iteration);
    iteration->ahead[iteration->batches_ahead++] = counted;
    if (is_some(iteration->device_mark)
        && done(PyObject_CallMethodOneArg((PyObject *)watch, state->names.batch_came, (PyObject *)iteration)) < 0)
        goto out;
    result = 0;
out:
    Py_DECREF(iteration);
    return result;
}

static PyObject *
next_batch(PyObject *op, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Callback *self = (Callback *)op;
    int64_t start_ns = now_ns();
    PyObject *batch = PyObject_Vectorcall(self->original, args, nargsf, kwnames);
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (batch == NULL) {
        if (count == 1 && self->watch->is_active && PyErr_ExceptionMatches(PyExc_StopIteration)) {
            PyObject *type, *error, *trace;
            PyErr_Fetch(&type, &error, &trace);
            PyObject *now = PyLong_FromLongLong(now_ns());
            if (now != NULL)
                (void)done(guarded_call(self, "epochs", self->note_end, (PyObject *)self->session, args[0], now));
            Py_XDECREF(now);
            take_up(type, error, trace);
        }
        return NULL;
    }
    if (count == 1 && note_batch(self, args[0], batch, start_ns) < 0 && settle(self, "data") < 0) {
        Py_DECREF(batch);
        return NULL;
    }
    return batch;
}

/* The number in a plain tensor, read where it lies: 1; 0 where it is none (on a device, of another kind, several numbers,
 * negated lazily, a wrapper that has no memory of its own); -1 with an exception. Torch's `item` goes through its
 * dispatcher, which is cold. */
static int
glance(Callback *self, PyObject *tensor, double *number)
{
    Described found;
    if (self->describe == NULL)
        return 0;
    if (self->describe(tensor, &found) < 0) {
        PyErr_Clear();
        return 0;
    }
    if (found.data == NULL || found.device.type != ON_CPU || found.kind.code != IS_FLOAT || found.kind.lanes != 1)
        return 0;
    for (int32_t at = 0; at < found.dimensions; at++)
        if (found.shape[at] != 1)
            return 0;
    const char *at = (const char *)found.data + found.offset_bytes;
    float single;
    if (found.kind.bits == 64)
        memcpy(number, at, 8);
    else if (found.kind.bits == 32) {
        memcpy(&single, at, 4);
        *number = single;
    }
    else
        return 0;
    PyObject *is_neg = PyObject_CallOneArg(self->is_neg, tensor); /* last: meanwhile another thread may move the memory */
    if (is_neg == NULL)
        return -1;
    Py_DECREF(is_neg);
    return is_neg == Py_False;
}

/* The loss of a backward that begins, and the time before it: 0, or -1 with an exception. */
static int
note_loss(Callback *self, Iteration *iteration, PyObject *tensors, PyObject *gradients)
{
    State *state = self->state;
    PyObject *watch = (PyObject *)self->watch;
    if (iteration->mark_ns)
        iteration->row.forward_ns += now_ns() - iteration->mark_ns;
    iteration->row.data_ns += iteration->batch_data_ns;
    iteration->batch_data_ns = 0;
    if (iteration->batches_ahead && !iteration->closure_backwards)
        iteration->row.samples += drop_batch(iteration);
    double loss;
    int is_plain = Py_IS_TYPE(tensors, (PyTypeObject *)self->tensor) && gradients == Py_None;
    if (is_plain && is_some(iteration->scaled)) {
        int is_scaled = PyObject_IsTrue(iteration->scaled);
        is_plain = is_scaled < 0 ? -1 : !is_scaled;
    }
    int is_seen = is_plain > 0 ? glance(self, tensors, &loss) : 0;
    if (is_seen < 0)
        return -1;
    if (!is_seen) {
        if (is_plain > 0)
            is_plain = truth_of(Py_TYPE(self->is_cpu)->tp_descr_get(self->is_cpu, tensors, (PyObject *)Py_TYPE(tensors)));
        if (is_plain > 0) {
            int modes = truth_of(PyObject_CallNoArgs(self->modes));
            is_plain = modes < 0 ? -1 : !modes;
        }
        if (is_plain < 0)
            return -1;
        if (double_of(is_plain ? PyObject_CallOneArg(self->item, tensors)
                               : PyObject_CallMethodObjArgs(watch, state->names.odd_loss, iteration, tensors, gradients, NULL),
                      &loss) < 0)
            return -1;
    }
    if (!isfinite(loss) && memcmp(&loss, &(int64_t){NULL_BITS}, sizeof loss)) {
        PyObject *boxed = PyFloat_FromDouble(loss);
        if (boxed == NULL)
            return -1;
        PyObject *told = PyObject_CallMethodObjArgs(watch, state->names.loss_broke, tensors, boxed, NULL);
        Py_DECREF(boxed);
        if (done(told) < 0)
            return -1;
    }
    if (iteration->has_stepped && !iteration->depth) {
        iteration->row.loss = loss;
        iteration->has_stepped = 0;
    }
    else {
        PyObject *boxed = PyFloat_FromDouble(loss);
        if (boxed == NULL)
            return -1;
        PyObject *added = PyObject_CallMethodObjArgs(watch, state->names.add_loss, iteration, boxed, NULL);
        Py_DECREF(boxed);
        if (done(added) < 0)
            return -1;
    }
    iteration->backwards_ever += 1;
    if (iteration->is_traced) {
        PyObject *tracer = PyObject_GetAttr(watch, state->names.tracer);
        if (tracer == NULL)
            return -1;
        PyObject *begun = PyObject_CallMethodNoArgs(tracer, state->names.backward_begins);
        Py_DECREF(tracer);
        if (done(begun) < 0)
            return -1;
    }
    return 0;
}

/* What torch itself is going to complain about is no failure of ours: then the exception is dropped. */
static int
is_ours(Callback *self, PyObject *tensors)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception) || !PyObject_TypeCheck(tensors, (PyTypeObject *)self->tensor))
        return 1;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    int64_t count = 1;
    int is_complex = 0;
    if (number_of(PyObject_CallMethodNoArgs(tensors, self->state->names.numel), &count) < 0
        || (is_complex = truth_of(PyObject_CallMethodNoArgs(tensors, self->state->names.is_complex))) < 0) {
        PyErr_Clear();
        count = 1;
        is_complex = 0;
    }
    PyErr_Restore(type, error, trace);
    return count == 1 && !is_complex;
}

static PyObject *
argument(PyObject *const *args, size_t nargsf, PyObject *kwnames, Py_ssize_t position, PyObject *name)
{
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (position < count)
        return args[position];
    for (Py_ssize_t at = 0; kwnames != NULL && at < PyTuple_GET_SIZE(kwnames); at++)
        if (PyUnicode_Compare(PyTuple_GET_ITEM(kwnames, at), name) == 0)
            return args[count + at];
    return Py_None;
}

/* After a backward: its duration, and what waits for its end. */
static int
backward_is_over(Callback *self, Iteration *iteration, int64_t start_ns, int64_t completed)
{
    State *state = self->state;
    int64_t now = now_ns();
    iteration->in_backward = 0;
    iteration->mark_ns = now;
    if (completed == iteration->completed) /* else an optimizer stepped inside, and its row is written */
        iteration->row.backward_ns += now - start_ns;
    if (iteration->depth) /* in a closure: what the optimizer does itself begins again */
        iteration->optimizer_start_ns = now;
    PyObject *owner, *function;
    if (is_some(iteration->pending)) {
        if ((function = PyObject_GetAttr((PyObject *)self->watch, state->names.backward_ended)) == NULL)
            return -1;
        PyObject *told = guarded_call(self, "device", function, (PyObject *)iteration, NULL, NULL);
        Py_DECREF(function);
        if (done(told) < 0)
            return -1;
    }
    if (iteration->is_traced) {
        if ((owner = PyObject_GetAttr((PyObject *)self->watch, state->names.tracer)) == NULL)
            return -1;
        function = PyObject_GetAttr(owner, state->names.backward_ended);
        Py_DECREF(owner);
        if (function == NULL)
            return -1;
        PyObject *told = guarded_call(self, "modules", function, NULL, NULL, NULL);
        Py_DECREF(function);
        if (done(told) < 0)
            return -1;
    }
    return 0;
}

static PyObject *
backward(PyObject *op, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Callback *self = (Callback *)op;
    if (!self->watch->is_active)
        return PyObject_Vectorcall(self->original, args, nargsf, kwnames);
    PyObject *tensors = argument(args, nargsf, kwnames, 0, self->state->names.tensors);
    PyObject *gradients = argument(args, nargsf, kwnames, 1, self->state->names.grad_tensors);
    Iteration *iteration = iteration_of(self);
    int64_t start_ns = 0, completed = 0;
    int is_noted = -1;
    if (iteration != NULL)
        is_noted = iteration->in_backward ? 0 : note_loss(self, iteration, tensors, gradients);
    if (is_noted < 0) {
        if (!is_ours(self, tensors))
            PyErr_Clear();
        else if (settle(self, "loss") < 0) {
            Py_XDECREF(iteration);
            return NULL;
        }
    }
    else if (!iteration->in_backward) {
        completed = iteration->completed;
        iteration->in_backward = 1;
        start_ns = now_ns();
    }
    PyObject *result = PyObject_Vectorcall(self->original, args, nargsf, kwnames);
    if (start_ns) {
        PyObject *type = NULL, *error = NULL, *trace = NULL;
        if (result == NULL) {
            iteration->has_stepped = 1; /* what it has summed up so far is not going to be applied */
            PyErr_Fetch(&type, &error, &trace);
        }
        if (backward_is_over(self, iteration, start_ns, completed) < 0)
            Py_CLEAR(result);
        if (type != NULL)
            take_up(type, error, trace);
    }
    Py_XDECREF(iteration);
    return result;
}

/* What an optimizer is known as, owned, where it is the one of last time. */
static Watched *
same_optimizer(Iteration *iteration, PyObject *optimizer)
{
    Watched *known = iteration->watched;
    PyObject *reference = known ? known->optimizer : NULL;
    if (reference == NULL || !PyWeakref_CheckRef(reference))
        return NULL;
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *referred;
    if (PyWeakref_GetRef(reference, &referred) <= 0) {
        PyErr_Clear();
        return NULL;
    }
    Py_DECREF(referred);
#else
    PyObject *referred = PyWeakref_GET_OBJECT(reference);
#endif
    return referred == optimizer ? (Watched *)Py_NewRef(known) : NULL;
}

static int
begin_step(Callback *self, PyObject *optimizer, PyObject *args, PyObject *kwargs)
{
    State *state = self->state;
    Recorder *watch = self->watch;
    PyObject *python = (PyObject *)watch;
    Iteration *iteration = iteration_of(self);
    if (iteration == NULL)
        return -1;
    int result = -1;
    Watched *watched = NULL;
    if (iteration->depth && iteration->owner != (int64_t)(intptr_t)optimizer) {
        PyObject *depth = PyLong_FromLongLong(iteration->depth + 1);
        if (depth == NULL)
            goto out;
        int is_inside = truth_of(PyObject_CallMethodOneArg(python, state->names.is_inside, depth));
        Py_DECREF(depth);
        if (is_inside < 0)
            goto out;
        if (is_inside) {
            iteration->depth += 1;
            result = 0;
            goto out;
        }
    }
    watched = same_optimizer(iteration, optimizer);
    if (watched == NULL) {
        PyObject *entered = PyObject_CallMethodObjArgs(python, state->names.enter, iteration, optimizer, NULL);
        if (entered == NULL)
            goto out;
        watched = (Watched *)entered;
        if (!PyObject_TypeCheck(entered, state->watched)) {
            PyErr_SetString(PyExc_TypeError, "not watched");
            goto out;
        }
    }
    iteration->depth = 1;
    if (iteration->row.step < 0) /* else a step that raised has left its number */
        iteration->row.step = watch->next_step++;
    int has_closure = 0;
    if (PyTuple_GET_SIZE(args) > 1 || PyDict_GET_SIZE(kwargs)) {
        has_closure = truth_of(PyObject_CallMethodObjArgs(python, state->names.has_closure, args, kwargs, NULL));
        if (has_closure < 0)
            goto out;
    }
    if (has_closure) /* gradients come later */
        iteration->closure_backwards = 0;
    else {
        Alarm *alarm = watched->alarm;
        int is_usual = is_some(iteration->pending) /* the loss is still on its way from a device */
            || (alarm != NULL && alarm->low <= iteration->row.loss && iteration->row.loss <= alarm->high);
        if ((iteration->row.step >= watch->sample_at || !is_usual)
            && done(PyObject_CallMethodObjArgs(python, state->names.sample, watched, iteration, NULL)) < 0)
            goto out;
    }
    if (is_some(watch->next_step_call)) {
        PyObject *call = Py_NewRef(watch->next_step_call);
        PyObject *called = PyObject_CallOneArg(call, optimizer);
        Py_DECREF(call);
        if (done(called) < 0)
            goto out;
    }
    if (is_some(iteration->pending)) {
        PyObject *pending = Py_NewRef(iteration->pending);
        PyObject *marked = PyObject_CallMethodOneArg(pending, state->names.mark, self->mark);
        Py_DECREF(pending);
        if (done(marked) < 0)
            goto out;
    }
    if (watch->slots != NULL)
        fetch_ahead(watch->slots);
    iteration->optimizer_start_ns = now_ns();
    result = 0;
out:
    Py_XDECREF(watched);
    Py_DECREF(iteration);
    return result;
}

/* An optimizer's learning rate: a float where it is one. */
static int
rate_of(Callback *self, PyObject *optimizer, double *rate)
{
    State *state = self->state;
    PyObject *groups = PyObject_GetAttr(optimizer, state->names.param_groups), *value = NULL;
    if (groups == NULL)
        return -1;
    if (PyList_CheckExact(groups) && PyList_GET_SIZE(groups) && PyDict_CheckExact(PyList_GET_ITEM(groups, 0))) {
        value = PyDict_GetItemWithError(PyList_GET_ITEM(groups, 0), state->names.lr);
        if (value == NULL && PyErr_Occurred()) {
            Py_DECREF(groups);
            return -1;
        }
        value = Py_NewRef(value ? value : Py_None);
    }
    else {
        int has_groups = PyObject_IsTrue(groups);
        if (has_groups > 0) {
            PyObject *group = PySequence_GetItem(groups, 0);
            value = group ? PyObject_CallMethodOneArg(group, state->names.get, state->names.lr) : NULL;
            Py_XDECREF(group);
        }
        else if (!has_groups)
            value = Py_NewRef(Py_None);
    }
    Py_DECREF(groups);
    if (value == NULL)
        return -1;
    int result = 0;
    if (PyFloat_CheckExact(value))
        *rate = PyFloat_AS_DOUBLE(value);
    else
        result = double_of(PyObject_CallMethodOneArg((PyObject *)self->watch, state->names.number_of, value), rate);
    Py_DECREF(value);
    return result;
}

static int
end_step(Callback *self, PyObject *optimizer)
{
    State *state = self->state;
    Recorder *watch = self->watch;
    Session *session = self->session;
    PyObject *python = (PyObject *)watch;
    int64_t now = now_ns();
    Iteration *iteration = iteration_of(self);
    if (iteration == NULL)
        return -1;
    int result = -1;
    PyObject *turn = NULL;
    StepRow *row = &iteration->row;
    Watched *watched = NULL;
    iteration->depth -= 1;
    if (iteration->depth || iteration->watched == NULL) {
        if (iteration->depth < 0)
            iteration->depth = 0;
        Py_DECREF(iteration);
        return 0;
    }
    watched = (Watched *)Py_NewRef(iteration->watched);
    iteration->has_stepped = 1;
    if (iteration->closure_backwards) {
        int64_t began_ns = now_ns();
        if (done(PyObject_CallMethodObjArgs(python, state->names.sample, watched, iteration, NULL)) < 0)
            goto out;
        iteration->spent_ns -= now_ns() - began_ns;
    }
    int64_t step = row->step;
    if (step >= session->steps)
        session->steps = step + 1;
    if (session->ring != watch->ring && done(PyObject_CallMethodNoArgs(python, state->names.reopen)) < 0)
        goto out;
    if (rate_of(self, optimizer, &row->lr) < 0)
        goto out;
    const int64_t null = NULL_BITS;
    int64_t backwards = iteration->backwards_ever;
    if (backwards == watched->backwards_seen) /* none since its last step: the loss is an older one */
        memcpy(&row->loss, &null, 8);
    watched->backwards_seen = backwards;
    if (PyContextVar_Get(self->turn, NULL, &turn) < 0 || turn == NULL || !PyTuple_Check(turn) || PyTuple_GET_SIZE(turn) != 3)
        goto out;
    if (turn != watched->turn && done(PyObject_CallMethodOneArg((PyObject *)watched, state->names.take_turn, turn)) < 0)
        goto out;
    if (PyTuple_GET_ITEM(turn, 2) != Py_None) {
        PyObject *loss = PyFloat_FromDouble(iteration->row.loss), *samples = PyLong_FromLongLong(iteration->row.samples);
        PyObject *added = NULL;
        if (loss != NULL && samples != NULL)
            added = PyObject_CallMethodObjArgs(PyTuple_GET_ITEM(turn, 2), state->names.add, loss, samples, NULL);
        Py_XDECREF(loss);
        Py_XDECREF(samples);
        if (done(added) < 0)
            goto out;
    }
    row->client = watched->client;
    row->round = watched->round;
    row->optimizer = watched->number;
    row->model = watched->model;
    row->local_step = watched->local_step++;
    row->allocated_bytes = watched->allocated_bytes;
    row->peak_bytes = watch->peak_bytes;
    row->t_ns = now + session->offset_ns;
    row->step_ns = (double)(now - iteration->last_end_ns);
    row->optimizer_ns = (double)(now - iteration->optimizer_start_ns);
    row->backwards = (int32_t)(backwards - iteration->backwards_before);
    if (is_some(iteration->pending)) {
        if (done(PyObject_CallMethodOneArg(python, state->names.put_later, (PyObject *)iteration)) < 0)
            goto out;
    }
    else if (watch->slots != NULL && put_row(watch->slots, row) < 0)
        goto out;
    row->step = -1;
    if (now > iteration->account_at_ns) {
        PyObject *numbers[2] = {PyLong_FromLongLong(step), PyLong_FromLongLong(now)}, *kept = NULL;
        if (numbers[0] != NULL && numbers[1] != NULL)
            kept = PyObject_CallMethodObjArgs(python, state->names.account, iteration, watched, numbers[0], numbers[1], NULL);
        Py_XDECREF(numbers[0]);
        Py_XDECREF(numbers[1]);
        if (done(kept) < 0)
            goto out;
    }
    memcpy(&row->grad_norm, &null, 8);
    iteration->backwards_before = backwards;
    iteration->closure_backwards = 0;
    row->skipped = row->samples = 0;
    row->data_ns = row->forward_ns = row->backward_ns = 0;
    iteration->completed += 1;
    iteration->last_end_ns = now;
    int64_t end = now_ns();
    iteration->mark_ns = end;
    iteration->spent_ns += end - now;
    result = 0;
out:
    if (result < 0 && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "the turn is not a tuple of client, round and tally");
    Py_XDECREF(turn);
    Py_XDECREF(watched);
    Py_DECREF(iteration);
    return result;
}

/* torch calls its hooks with an optimizer, the arguments of its step, and those given by name. */
static PyObject *
step_hook(PyObject *op, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Callback *self = (Callback *)op;
    if (!self->watch->is_active)
        Py_RETURN_NONE;
    int is_done;
    if (PyVectorcall_NARGS(nargsf) != 3 || kwnames != NULL || !PyTuple_Check(args[1]) || !PyDict_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "an optimizer's hook takes the optimizer, a tuple and a dict");
        is_done = -1;
    }
    else if (Py_IS_TYPE(op, self->state->StepBegins))
        is_done = begin_step(self, args[0], args[1], args[2]);
    else
        is_done = end_step(self, args[0]);
    if (is_done < 0 && settle(self, "steps") < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* What the callbacks are as objects */

#define VISIT_PART(name) Py_VISIT(self->name);
#define DROP_PART(name) Py_XDECREF(self->name);
#define TAKE_PART(part)                                                                                                \
    if ((self->part = Py_XNewRef(PyDict_GetItemString(parts, #part))) == NULL)                                         \
        missing = #part;

static int
Callback_traverse(Callback *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->module);
    Py_VISIT(self->watch);
    Py_VISIT(self->local);
    Py_VISIT(self->session);
    PARTS(VISIT_PART)
    Py_VISIT(self->dict);
    return 0;
}

/* Nothing but the attributes is cleared: a callback may be called until it is gone, and what it holds breaks cycles. */
static int
Callback_clear(Callback *self)
{
    Py_CLEAR(self->dict);
    return 0;
}

static void
Callback_dealloc(Callback *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weak != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    Py_XDECREF(self->watch);
    Py_XDECREF(self->local);
    Py_XDECREF(self->session);
    PARTS(DROP_PART)
    Py_XDECREF(self->dict);
    Py_XDECREF(self->module);
    type->tp_free(self);
    Py_DECREF(type);
}

/* NextBatch(watch, local, session, tensor_base, exchange, parts), and the same for the others. */
static PyObject *
Callback_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *watch, *local, *session, *base, *exchange, *parts;
    State *state = PyType_GetModuleState(type);
    if (state == NULL
        || !PyArg_ParseTuple(args, "O!O!O!O!OO!", state->recorder, &watch, state->iterations, &local, state->session,
                             &session, &PyType_Type, &base, &exchange, &PyDict_Type, &parts))
        return NULL;
    const Exchange *api = exchange == Py_None ? NULL : PyCapsule_GetPointer(exchange, EXCHANGE);
    if (api == NULL && exchange != Py_None)
        return NULL;
    Callback *self = (Callback *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    const char *missing = NULL;
    PARTS(TAKE_PART)
    if (missing != NULL)
        PyErr_Format(PyExc_TypeError, "a callback needs %s", missing);
    else if (!PyType_Check(self->tensor) || !PyContextVar_CheckExact(self->turn)
             || Py_TYPE(self->is_cpu)->tp_descr_get == NULL)
        PyErr_SetString(PyExc_TypeError, "not a type, a context variable or an attribute of a tensor");
    if (PyErr_Occurred()) {
        Py_DECREF(self);
        return NULL;
    }
    self->describe = api != NULL && api->version.major == EXCHANGE_MAJOR ? api->describe : NULL;
    self->module = Py_NewRef(PyType_GetModule(type));
    self->state = state;
    self->call = type == state->NextBatch ? next_batch : type == state->Backward ? backward : step_hook;
    self->watch = (Recorder *)Py_NewRef(watch);
    self->local = (Iterations *)Py_NewRef(local);
    self->session = (Session *)Py_NewRef(session);
    PyMappingMethods *mapping = ((PyTypeObject *)base)->tp_as_mapping;
    int is_tensor = PyType_IsSubtype((PyTypeObject *)self->tensor, (PyTypeObject *)base);
    self->length = mapping && is_tensor ? mapping->mp_length : NULL;
    return (PyObject *)self;
}

static PyObject *
Callback_get(PyObject *self, PyObject *instance, PyObject *Py_UNUSED(type))
{
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

/* Pickled by its name, as the function is that it stands for. */
static PyObject *
Callback_reduce(PyObject *self, PyObject *Py_UNUSED(none))
{
    return PyObject_GetAttr(self, ((Callback *)self)->state->names.__qualname__);
}

static PyMethodDef Callback_methods[] = {{"__reduce__", Callback_reduce, METH_NOARGS, NULL}, {NULL}};
static PyGetSetDef Callback_getset[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL}, {NULL}};
static PyMemberDef Callback_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Callback, call), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Callback, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Callback, weak), READONLY, NULL},
    {NULL},
};

#define CALLBACK_SLOTS                                                                                                 \
    {Py_tp_new, Callback_new}, {Py_tp_traverse, Callback_traverse}, {Py_tp_clear, Callback_clear},                     \
        {Py_tp_dealloc, Callback_dealloc}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, Callback_members},         \
        {Py_tp_methods, Callback_methods}, {Py_tp_getset, Callback_getset}
#define CALLBACK_FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL)

static PyType_Slot function_slots[] = {CALLBACK_SLOTS, {0, NULL}};
static PyType_Slot method_slots[] = {CALLBACK_SLOTS, {Py_tp_descr_get, Callback_get}, {0, NULL}};
static PyType_Spec NextBatch_spec = {"stethos._hot.NextBatch", sizeof(Callback), 0, CALLBACK_FLAGS | Py_TPFLAGS_METHOD_DESCRIPTOR, method_slots};
static PyType_Spec Backward_spec = {"stethos._hot.Backward", sizeof(Callback), 0, CALLBACK_FLAGS, function_slots};
static PyType_Spec StepBegins_spec = {"stethos._hot.StepBegins", sizeof(Callback), 0, CALLBACK_FLAGS, function_slots};
static PyType_Spec StepEnded_spec = {"stethos._hot.StepEnded", sizeof(Callback), 0, CALLBACK_FLAGS, function_slots};

/* The module ----------------------------------------------------------------------------------------------------- */

static PyObject *
let_tick(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long start, step;
    if (!PyArg_ParseTuple(args, "LL", &start, &step))
        return NULL;
    ticked_ns = start;
    tick_ns = step;
    Py_RETURN_NONE;
}

static PyObject *
look_at_clock(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromLongLong(now_ns());
}

static PyMethodDef hot_methods[] = {
    {"now_ns", look_at_clock, METH_NOARGS, "The clock that the callbacks look at."},
    {"let_tick", let_tick, METH_VARARGS, "let_tick(start, step): a clock for tests; a step of 0 gives the true one back."},
    {NULL},
};

static int
add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **where, const char *name)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL)
        return -1;
    if (where != NULL)
        *where = (PyTypeObject *)Py_NewRef(type);
    int added = PyModule_AddObjectRef(module, name, type);
    Py_DECREF(type);
    return added;
}

static int
hot_exec(PyObject *module)
{
    State *state = PyModule_GetState(module);
#define NAME(name)                                                                                                     \
    if ((state->names.name = PyUnicode_InternFromString(#name)) == NULL)                                               \
        return -1;
    NAMES(NAME)
#undef NAME
    if (add_type(module, &Slots_spec, &state->slots, "Slots") < 0)
        return -1;
#define TYPE(Name, name)                                                                                               \
    if (add_type(module, &Name##_spec, &state->name, #Name "Fields") < 0)                                              \
        return -1;
    FIELD_TYPES(TYPE)
#undef TYPE
#define TYPE(Name)                                                                                                     \
    if (add_type(module, &Name##_spec, &state->Name, #Name) < 0)                                                       \
        return -1;
    CALLBACKS(TYPE)
#undef TYPE
    if (PyModule_AddIntConstant(module, "LAYOUT", LAYOUT) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static int
hot_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    for (PyTypeObject **type = &state->slots; type <= &state->StepEnded; type++)
        Py_VISIT(*type);
    return 0;
}

/* Only when nothing is left that could be called: a callback owns its module. */
static void
hot_free(void *module)
{
    State *state = PyModule_GetState(module);
    if (state == NULL)
        return;
    for (PyTypeObject **type = &state->slots; type <= &state->StepEnded; type++)
        Py_CLEAR(*type);
    for (PyObject **name = &state->names.lr; name <= &state->names.__qualname__; name++)
        Py_CLEAR(*name);
}

static PyModuleDef_Slot hot_slots[] = {{Py_mod_exec, hot_exec}, {0, NULL}};
static struct PyModuleDef hot_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_hot",
    .m_doc = "What runs in every training step, in C; see _hot.c.",
    .m_size = sizeof(State),
    .m_methods = hot_methods,
    .m_slots = hot_slots,
    .m_traverse = hot_traverse,
    .m_free = hot_free,
};

PyMODINIT_FUNC
PyInit__hot(void)
{
    return PyModuleDef_Init(&hot_module);
}
