/* What runs in every training step, without the interpreter.
 *
 * The same work as `observe/hotpath.py` and `record/slots.py`, which say what it means and are used where this
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
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_FOLD 1
#include <immintrin.h>
#endif

#define INTERFACE 3
#define LONG_NS 1000000000LL /* as in hotpath.py */
#define NULL_BITS ((int64_t)0x7FF80000000007A2LL) /* schema.NULL_F64 */
#define MOST_AHEAD 64 /* as in iteration.py */

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
typedef struct {
    PyTypeObject *slots, *alarm, *watched, *iteration, *iterations, *session, *watch;
    PyTypeObject *next_batch, *backward, *step_begins, *step_ended;
    PyObject *lr, *param_groups, *num_yielded, *get;
    PyObject *iteration_, *failed, *beat, *samples_in, *batch_came, *odd_loss, *add_loss, *backward_ended, *tracer;
    PyObject *backward_begins, *numel, *is_complex, *run, *guard, *is_inside, *enter, *has_closure, *sample, *mark;
    PyObject *reopen, *number_of, *take_turn, *add, *put_later, *keep_house, *tensors, *grad_tensors, *qualname;
} State;

static struct PyModuleDef hot_module;

/* Fields that Python's classes inherit ------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    double low, high;
} Alarm;

typedef struct {
    PyObject_HEAD
    PyObject *optimizer; /* a weak reference */
    Alarm *alarm;
    PyObject *turn;
    int64_t table_client, round_optimizer, local_step_model, backwards, allocated_bytes;
} Watched;

typedef struct {
    PyObject_HEAD
    Watched *watched;
    PyObject *scaled, *pending, *device_mark, *pace;
    double loss, norm;
    int64_t backward_ns, backwards, backwards_before, batch_data_ns, batch_source, closure_backwards, completed, counted,
        data_ns, depth, forward_ns, house_ns, kept_ns, last_end_ns, mark_ns, optimizer_start_ns, owner, samples, skipped,
        spent_ns, step;
    char has_stepped, in_backward, is_traced;
    int batches_ahead;
    int64_t ahead[MOST_AHEAD]; /* samples of batches that have come and that no backward has followed yet, the oldest first */
} Iteration;

typedef struct {
    PyObject_HEAD
    Iteration *home;
    uint64_t home_thread;
} Iterations;

typedef struct {
    PyObject_HEAD
    PyObject *ring, *names, *slots, *turn;
    int64_t steps, offset_ns, metrics_table;
} Session;

typedef struct {
    PyObject_HEAD
    PyObject *errand, *put, *ring;
    struct Slots *slots; /* those that `put` writes to, where it is their `put_step` */
    int64_t peak_bytes, next_step;
    char is_active, is_due;
} Watch;

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
#define NUMBER(type, name) {#name, T_LONGLONG, offsetof(type, name), 0, NULL}
#define DOUBLE(type, name) {#name, T_DOUBLE, offsetof(type, name), 0, NULL}
#define OBJECT(type, name) {#name, T_OBJECT, offsetof(type, name), 0, NULL}

#define FIELDS_TYPE(Name, VISIT)                                                                                       \
    static int Name##_traverse(PyObject *op, visitproc visit, void *arg)                                              \
    {                                                                                                                  \
        Name *self = (Name *)op;                                                                                       \
        (void)self;                                                                                                    \
        Py_VISIT(Py_TYPE(op));                                                                                         \
        VISIT(Py_VISIT)                                                                                                \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static int Name##_clear(PyObject *op)                                                                             \
    {                                                                                                                  \
        Name *self = (Name *)op;                                                                                       \
        (void)self;                                                                                                    \
        VISIT(Py_CLEAR)                                                                                                \
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
        {Py_tp_members, Name##_members},   {Py_tp_getset, Name##_getset}, {Py_tp_methods, Name##_methods},             \
        {0, NULL},                                                                                                     \
    };                                                                                                                 \
    static PyType_Spec Name##_spec = {                                                                                 \
        .name = "stethos._hot." #Name "Fields",                                                                        \
        .basicsize = sizeof(Name),                                                                                     \
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,                                        \
        .slots = Name##_slots,                                                                                         \
    };

static PyMemberDef Alarm_members[] = {DOUBLE(Alarm, low), DOUBLE(Alarm, high), {NULL}};
static PyGetSetDef Alarm_getset[] = {{NULL}};
static PyMethodDef Alarm_methods[] = {{NULL}};
#define ALARM_OBJECTS(on)
FIELDS_TYPE(Alarm, ALARM_OBJECTS)

static PyMemberDef Watched_members[] = {
    OBJECT(Watched, optimizer), OBJECT(Watched, turn), NUMBER(Watched, table_client),
    NUMBER(Watched, round_optimizer), NUMBER(Watched, local_step_model), NUMBER(Watched, backwards),
    NUMBER(Watched, allocated_bytes), {NULL},
};
static PyGetSetDef Watched_getset[] = {OWN(Watched, alarm, alarm), {NULL}};
static PyMethodDef Watched_methods[] = {{NULL}};
#define WATCHED_OBJECTS(on) on(self->optimizer); on(self->alarm); on(self->turn);
FIELDS_TYPE(Watched, WATCHED_OBJECTS)

static PyMemberDef Iteration_members[] = {
    OBJECT(Iteration, scaled), OBJECT(Iteration, pending), OBJECT(Iteration, device_mark),
    OBJECT(Iteration, pace), DOUBLE(Iteration, loss), DOUBLE(Iteration, norm), NUMBER(Iteration, backward_ns),
    NUMBER(Iteration, backwards), NUMBER(Iteration, backwards_before), NUMBER(Iteration, batch_data_ns),
    NUMBER(Iteration, batch_source), NUMBER(Iteration, closure_backwards), NUMBER(Iteration, completed),
    NUMBER(Iteration, counted), NUMBER(Iteration, data_ns), NUMBER(Iteration, depth), NUMBER(Iteration, forward_ns),
    NUMBER(Iteration, house_ns), NUMBER(Iteration, kept_ns), NUMBER(Iteration, last_end_ns), NUMBER(Iteration, mark_ns),
    NUMBER(Iteration, optimizer_start_ns), NUMBER(Iteration, owner), NUMBER(Iteration, samples),
    NUMBER(Iteration, skipped), NUMBER(Iteration, spent_ns), NUMBER(Iteration, step), {NULL},
};
static PyGetSetDef Iteration_getset[] = {
    OWN(Iteration, watched, watched), TRUTH(Iteration, has_stepped), TRUTH(Iteration, in_backward), TRUTH(Iteration, is_traced), {NULL},
};
static PyMethodDef Iteration_methods[] = {{NULL}};
#define ITERATION_OBJECTS(on) on(self->watched); on(self->scaled); on(self->pending); on(self->device_mark); on(self->pace);
FIELDS_TYPE(Iteration, ITERATION_OBJECTS)

static PyMemberDef Iterations_members[] = {
    {"home_thread", T_ULONGLONG, offsetof(Iterations, home_thread), 0, NULL}, {NULL},
};
static PyGetSetDef Iterations_getset[] = {OWN(Iterations, home, iteration), {NULL}};
static PyMethodDef Iterations_methods[] = {{NULL}};
#define ITERATIONS_OBJECTS(on) on(self->home);
FIELDS_TYPE(Iterations, ITERATIONS_OBJECTS)

static PyMemberDef Watch_members[] = {
    OBJECT(Watch, errand), OBJECT(Watch, ring), NUMBER(Watch, peak_bytes), NUMBER(Watch, next_step), {NULL},
};
static struct Slots *slots_written_by(PyObject *put);

static PyObject *
Watch_put_get(PyObject *self, void *Py_UNUSED(none))
{
    PyObject *put = ((Watch *)self)->put;
    return Py_NewRef(put ? put : Py_None);
}

static int
Watch_put_set(PyObject *op, PyObject *put, void *Py_UNUSED(none))
{
    Watch *self = (Watch *)op;
    struct Slots *slots = put ? slots_written_by(put) : NULL;
    Py_XINCREF((PyObject *)slots);
    Py_XSETREF(self->slots, slots);
    Py_XINCREF(put);
    Py_XSETREF(self->put, put);
    return 0;
}

static PyGetSetDef Watch_getset[] = {
    {"put", Watch_put_get, Watch_put_set, NULL, NULL}, TRUTH(Watch, is_active), TRUTH(Watch, is_due), {NULL},
};
static PyMethodDef Watch_methods[] = {{NULL}};
#define WATCH_OBJECTS(on) on(self->errand); on(self->put); on(self->ring); on(self->slots);
FIELDS_TYPE(Watch, WATCH_OBJECTS)

/* Slots of a ring ------------------------------------------------------------------------------------------ */

#define STEP_WORDS 17

typedef struct Slots {
    PyObject_HEAD
    Py_buffer map;
    int64_t *words;   /* NULL once released */
    int64_t next;     /* the slot that is taken next */
    int64_t enough;   /* where to look at the reader's tail again */
    int64_t slots, slot_words, first_word;
    int not_a_number; /* the word that counts rows with something else in them */
    PyObject *look;   /* called at `enough`: says where the next one is, or -1 if the ring is full */
} Slots;

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
    if (base < 0 || slots <= 0 || slot_bytes < 8 * (STEP_WORDS + 1) || base % 8 || slot_bytes % 8 || not_a_number < 0) {
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
    __builtin_prefetch(slot + 8 * STEP_WORDS, 1);
}

static inline void
commit(int64_t *slot, int64_t index)
{
    __atomic_store_n(slot, index + 1, __ATOMIC_RELEASE);
}

/* A slot without a row, because there was something in it that is no number. */
static void
leave_void(Slots *self, int64_t *slot, int64_t index)
{
    if (self->words == NULL)
        return;
    memset((char *)slot + 8, 0, 2); /* TABLE_VOID */
    commit(slot, index);
    self->words[self->not_a_number]++;
}

static inline int64_t
bits_of(double value)
{
    int64_t bits;
    memcpy(&bits, &value, 8);
    return bits;
}

static int
put_words(Slots *self, const int64_t *words, int count)
{
    int room = has_room(self);
    if (room <= 0)
        return room;
    int64_t index, *slot = taken(self, &index);
    memcpy(slot + 1, words, 8 * (size_t)count);
    commit(slot, index);
    return 1;
}

static const char STEP_KINDS[STEP_WORDS + 1] = "qqqqqddddddddqqqq";

static PyObject *
Slots_put_step(Slots *self, PyObject *const *values, Py_ssize_t count)
{
    int64_t words[STEP_WORDS];
    if (count != STEP_WORDS) {
        PyErr_Format(PyExc_TypeError, "a row of steps has %d values, not %zd", STEP_WORDS, count);
        return NULL;
    }
    for (int at = 0; at < STEP_WORDS; at++) {
        if (STEP_KINDS[at] == 'd')
            words[at] = bits_of(PyFloat_AsDouble(values[at]));
        else
            words[at] = PyLong_AsLongLong(values[at]);
        if (PyErr_Occurred()) {
            PyObject *type, *error, *trace;
            PyErr_Fetch(&type, &error, &trace);
            int room = has_room(self);
            if (room > 0) {
                int64_t index, *slot = taken(self, &index);
                leave_void(self, slot, index);
            }
            PyErr_Restore(type, error, trace);
            return NULL;
        }
    }
    int is_put = put_words(self, words, STEP_WORDS);
    return is_put < 0 ? NULL : PyBool_FromLong(is_put);
}

/* The slots whose `put_step` it is, which are then written to directly; or NULL. */
static Slots *
slots_written_by(PyObject *put)
{
    if (PyCFunction_CheckExact(put) && PyCFunction_GET_FUNCTION(put) == (PyCFunction)(void (*)(void))Slots_put_step)
        return (Slots *)PyCFunction_GET_SELF(put);
    return NULL;
}

static PyObject *
Slots_next(Slots *self)
{
    return PyLong_FromLongLong(self->next++);
}

/* A function that packs a row into a slot of its own, as `Ring.writer` promises. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Slots *slots;
    PyObject *pack_into;
} Writer;

#define MOST_VALUES 32

static PyObject *
Writer_call(PyObject *op, PyObject *const *values, size_t nargsf, PyObject *kwnames)
{
    Writer *self = (Writer *)op;
    Slots *slots = self->slots;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if ((kwnames != NULL && PyTuple_GET_SIZE(kwnames)) || count > MOST_VALUES) {
        PyErr_SetString(PyExc_TypeError, "a row is a few values");
        return NULL;
    }
    int room = has_room(slots);
    if (room <= 0)
        return room < 0 ? NULL : Py_NewRef(Py_False);
    int64_t index, *slot = taken(slots, &index);
    PyObject *stack[MOST_VALUES + 2];
    stack[0] = Py_NewRef(slots->map.obj);
    stack[1] = PyLong_FromSsize_t((char *)(slot + 1) - (char *)slots->words);
    if (count)
        memcpy(stack + 2, values, sizeof(PyObject *) * (size_t)count);
    PyObject *done = stack[1] ? PyObject_Vectorcall(self->pack_into, stack, (size_t)count + 2, NULL) : NULL;
    Py_DECREF(stack[0]);
    Py_XDECREF(stack[1]);
    if (done == NULL) {
        leave_void(slots, slot, index);
        return NULL;
    }
    Py_DECREF(done);
    if (slots->words != NULL)
        commit(slot, index);
    Py_RETURN_TRUE;
}

static int
Writer_traverse(Writer *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->slots);
    Py_VISIT(self->pack_into);
    return 0;
}

static void
Writer_dealloc(Writer *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->slots);
    Py_XDECREF(self->pack_into);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef Writer_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Writer, call), READONLY, NULL}, {NULL}};
static PyType_Slot Writer_slots[] = {
    {Py_tp_traverse, Writer_traverse}, {Py_tp_dealloc, Writer_dealloc}, {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, Writer_members},   {0, NULL},
};
static PyType_Spec Writer_spec = {
    .name = "stethos._hot.Writer",
    .basicsize = sizeof(Writer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = Writer_slots,
};

static PyObject *
Slots_writer(Slots *self, PyTypeObject *defining, PyObject *const *args, Py_ssize_t count, PyObject *kwnames)
{
    if (count != 1 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames))) {
        PyErr_SetString(PyExc_TypeError, "writer(pack_into)");
        return NULL;
    }
    PyTypeObject *type = (PyTypeObject *)PyObject_GetAttrString(PyType_GetModule(defining), "Writer");
    if (type == NULL)
        return NULL;
    Writer *writer = (Writer *)type->tp_alloc(type, 0);
    Py_DECREF(type);
    if (writer == NULL)
        return NULL;
    writer->call = Writer_call;
    writer->slots = (Slots *)Py_NewRef(self);
    writer->pack_into = Py_NewRef(args[0]);
    return (PyObject *)writer;
}

static PyMethodDef Slots_methods[] = {
    {"release", (PyCFunction)Slots_release, METH_NOARGS, "Let the map go; nothing is written any more."},
    {"put_step", (PyCFunction)(void (*)(void))Slots_put_step, METH_FASTCALL, "Write a row of `steps`, given as words."},
    {"writer", (PyCFunction)(void (*)(void))Slots_writer, METH_METHOD | METH_FASTCALL | METH_KEYWORDS,
     "A function that writes one row with a packer."},
    {NULL},
};
static PyMemberDef Slots_members[] = {
    NUMBER(Slots, next), NUMBER(Slots, enough), {NULL},
};
static PyType_Slot Slots_slots[] = {
    {Py_tp_new, Slots_new},         {Py_tp_traverse, Slots_traverse}, {Py_tp_clear, Slots_clear},
    {Py_tp_dealloc, Slots_dealloc}, {Py_tp_methods, Slots_methods},   {Py_tp_members, Slots_members},
    {Py_tp_iter, PyObject_SelfIter}, {Py_tp_iternext, Slots_next},    {0, NULL},
};
static PyType_Spec Slots_spec = {
    .name = "stethos._hot.Slots",
    .basicsize = sizeof(Slots),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = Slots_slots,
};

/* A session, and its rows of `metrics` ----------------------------------------------------------------------- */

/* The low half is the first of the two numbers. */
static inline int64_t
pair(int64_t low, int64_t high)
{
    return (int64_t)((uint64_t)high << 32 | (uint64_t)(uint32_t)low);
}

/* Write a float under a known name: whether it was; not where that takes more than a glance. */
static int
put_float(Session *self, PyObject *name, PyObject *value)
{
    Slots *slots = (Slots *)self->slots;
    if (!PyFloat_CheckExact(value) || !PyUnicode_CheckExact(name) || slots->words == NULL || slots->next >= slots->enough)
        return 0;
    PyObject *known = PyDict_GetItemWithError(self->names, name), *turn = NULL;
    if (known == NULL || PyContextVar_Get(self->turn, NULL, &turn) < 0 || turn == NULL) {
        PyErr_Clear();
        return 0;
    }
    int64_t words[6];
    if (PyTuple_Check(turn) && PyTuple_GET_SIZE(turn) == 3) {
        words[0] = pair(self->metrics_table, PyLong_AsLongLong(PyTuple_GET_ITEM(turn, 0)));
        words[1] = pair(PyLong_AsLongLong(PyTuple_GET_ITEM(turn, 1)), INT32_MIN); /* no optimizer: NULL_I32 */
        words[2] = self->steps;
        words[3] = now_ns() + self->offset_ns;
        words[4] = pair(PyLong_AsLongLong(known), 0);
        words[5] = bits_of(PyFloat_AS_DOUBLE(value));
    }
    else
        PyErr_SetNone(PyExc_TypeError);
    Py_DECREF(turn);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    put_words(slots, words, 6);
    return 1;
}

static PyObject *
Session_put_floats(Session *self, PyObject *values)
{
    Py_ssize_t at = 0;
    long count = 0;
    PyObject *name, *value;
    if (PyDict_CheckExact(values) && self->names != NULL && PyDict_Check(self->names) && self->slots != NULL
        && self->turn != NULL && PyContextVar_CheckExact(self->turn))
        while (PyDict_Next(values, &at, &name, &value) && put_float(self, name, value))
            count++;
    return PyLong_FromLong(count);
}

static PyObject *
Session_slots_get(Session *self, void *Py_UNUSED(none))
{
    return Py_NewRef(self->slots ? self->slots : Py_None);
}

static int
Session_slots_set(Session *self, PyObject *value, void *Py_UNUSED(none))
{
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(self), &hot_module);
    State *state = module ? PyModule_GetState(module) : NULL;
    if (state == NULL)
        return -1;
    if (value != NULL && value != Py_None && !Py_IS_TYPE(value, state->slots)) {
        PyErr_SetString(PyExc_TypeError, "slots of a ring, or None");
        return -1;
    }
    Py_XSETREF(self->slots, value == NULL || value == Py_None ? NULL : Py_NewRef(value));
    return 0;
}

static PyMemberDef Session_members[] = {
    OBJECT(Session, ring), OBJECT(Session, names), OBJECT(Session, turn), NUMBER(Session, steps),
    NUMBER(Session, offset_ns), NUMBER(Session, metrics_table), {NULL},
};
static PyGetSetDef Session_getset[] = {
    {"slots", (getter)Session_slots_get, (setter)Session_slots_set, NULL, NULL}, {NULL},
};
static PyMethodDef Session_methods[] = {
    {"put_floats", (PyCFunction)Session_put_floats, METH_O,
     "put_floats(values): how many of the first ones, by name, were written as rows of `metrics`."},
    {NULL},
};
#define SESSION_OBJECTS(on) on(self->ring); on(self->names); on(self->slots); on(self->turn);
FIELDS_TYPE(Session, SESSION_OBJECTS)

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

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *module;
    State *state; /* the module's */
    Watch *watch;
    Iterations *local;
    Session *session;
    PyObject *original;                         /* what is wrapped, where something is */
    PyObject *is_training, *modes, *item, *is_cpu, *turn, *mark; /* of torch's and ours, whichever it needs */
    PyTypeObject *tensor;
    lenfunc length; /* of a tensor's first dimension */
    Describe describe; /* NULL where torch is too old for it */
    PyObject *is_neg;
    PyObject *note_begin, *note_end;
    PyObject *dict, *weak;
} Callback;

/* This thread's iteration, owned; NULL with an exception. */
static inline Iteration *
iteration_of(Callback *self)
{
    Iterations *local = self->local;
    if (local->home_thread == (uint64_t)PyThread_get_thread_ident() && local->home != NULL)
        return (Iteration *)Py_NewRef(local->home);
    PyObject *found = PyObject_GetAttr((PyObject *)local, self->state->iteration_);
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
        told = PyObject_CallMethodObjArgs((PyObject *)self->watch, self->state->failed, name, error, NULL);
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
    PyObject *guard = PyObject_GetAttr((PyObject *)self->session, self->state->guard), *name = NULL, *result = NULL;
    if (guard != NULL && (name = PyUnicode_FromString(place)) != NULL)
        result = PyObject_CallMethodObjArgs(guard, self->state->run, name, function, a, b, c, NULL);
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
    Watch *watch = self->watch;
    int is_training = truth_of(PyObject_CallNoArgs(self->is_training));
    if (is_training < 0)
        return -1;
    if (!is_training || !watch->is_active) /* an evaluation: let it be seen from outside that it goes on */
        return watch->is_active ? done(PyObject_CallMethodNoArgs((PyObject *)watch, state->beat)) : 0;
    int64_t yielded;
    if (number_of(PyObject_GetAttr(iterator, state->num_yielded), &yielded) < 0)
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
    if (now > iteration->house_ns + LONG_NS && done(PyObject_CallMethodNoArgs((PyObject *)watch, state->beat)) < 0)
        goto out;
    PyObject *first = batch;
    if (PyList_CheckExact(batch))
        first = PyList_GET_SIZE(batch) ? PyList_GET_ITEM(batch, 0) : NULL;
    Py_ssize_t samples = 0;
    if (first != NULL && Py_IS_TYPE(first, self->tensor) && self->length != NULL) {
        Py_INCREF(first);
        samples = self->length(first);
        Py_DECREF(first);
        if (samples < 0)
            PyErr_Clear();
    }
    int64_t counted = samples;
    if (samples <= 0 && number_of(PyObject_CallMethodOneArg((PyObject *)watch, state->samples_in, batch), &counted) < 0)
        goto out;
    if (yielded == 1 || iteration->batch_source != (int64_t)(intptr_t)iterator) {
        iteration->batch_source = (int64_t)(intptr_t)iterator;
        iteration->batches_ahead = 0;
    }
    if (iteration->batches_ahead == MOST_AHEAD)
        drop_batch(iteration);
    iteration->ahead[iteration->batches_ahead++] = counted;
    if (is_some(iteration->device_mark)
        && done(PyObject_CallMethodOneArg((PyObject *)watch, state->batch_came, (PyObject *)iteration)) < 0)
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
        iteration->forward_ns += now_ns() - iteration->mark_ns;
    iteration->data_ns += iteration->batch_data_ns;
    iteration->batch_data_ns = 0;
    if (iteration->batches_ahead && !iteration->closure_backwards)
        iteration->samples += drop_batch(iteration);
    double loss;
    int is_plain = Py_IS_TYPE(tensors, self->tensor) && gradients == Py_None;
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
                               : PyObject_CallMethodObjArgs(watch, state->odd_loss, iteration, tensors, gradients, NULL),
                      &loss) < 0)
            return -1;
    }
    if (iteration->has_stepped && !iteration->depth) {
        iteration->loss = loss;
        iteration->has_stepped = 0;
    }
    else {
        PyObject *boxed = PyFloat_FromDouble(loss);
        if (boxed == NULL)
            return -1;
        PyObject *added = PyObject_CallMethodObjArgs(watch, state->add_loss, iteration, boxed, NULL);
        Py_DECREF(boxed);
        if (done(added) < 0)
            return -1;
    }
    iteration->backwards += 1;
    if (iteration->is_traced) {
        PyObject *tracer = PyObject_GetAttr(watch, state->tracer);
        if (tracer == NULL)
            return -1;
        PyObject *begun = PyObject_CallMethodNoArgs(tracer, state->backward_begins);
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
    if (!PyErr_ExceptionMatches(PyExc_Exception) || !PyObject_TypeCheck(tensors, self->tensor))
        return 1;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    int64_t count = 1;
    int is_complex = 0;
    if (number_of(PyObject_CallMethodNoArgs(tensors, self->state->numel), &count) < 0
        || (is_complex = truth_of(PyObject_CallMethodNoArgs(tensors, self->state->is_complex))) < 0) {
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
        iteration->backward_ns += now - start_ns;
    if (iteration->depth) /* in a closure: what the optimizer does itself begins again */
        iteration->optimizer_start_ns = now;
    PyObject *owner, *function;
    if (is_some(iteration->pending)) {
        if ((function = PyObject_GetAttr((PyObject *)self->watch, state->backward_ended)) == NULL)
            return -1;
        PyObject *told = guarded_call(self, "device", function, (PyObject *)iteration, NULL, NULL);
        Py_DECREF(function);
        if (done(told) < 0)
            return -1;
    }
    if (iteration->is_traced) {
        if ((owner = PyObject_GetAttr((PyObject *)self->watch, state->tracer)) == NULL)
            return -1;
        function = PyObject_GetAttr(owner, state->backward_ended);
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
    PyObject *tensors = argument(args, nargsf, kwnames, 0, self->state->tensors);
    PyObject *gradients = argument(args, nargsf, kwnames, 1, self->state->grad_tensors);
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
    Watch *watch = self->watch;
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
        int is_inside = truth_of(PyObject_CallMethodOneArg(python, state->is_inside, depth));
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
        PyObject *entered = PyObject_CallMethodObjArgs(python, state->enter, iteration, optimizer, NULL);
        if (entered == NULL)
            goto out;
        watched = (Watched *)entered;
        if (!PyObject_TypeCheck(entered, state->watched)) {
            PyErr_SetString(PyExc_TypeError, "not watched");
            goto out;
        }
    }
    iteration->depth = 1;
    if (iteration->step < 0) /* else a step that raised has left its number */
        iteration->step = watch->next_step++;
    int has_closure = 0;
    if (PyTuple_GET_SIZE(args) > 1 || PyDict_GET_SIZE(kwargs)) {
        has_closure = truth_of(PyObject_CallMethodObjArgs(python, state->has_closure, args, kwargs, NULL));
        if (has_closure < 0)
            goto out;
    }
    if (has_closure) /* gradients come later */
        iteration->closure_backwards = 0;
    else {
        Alarm *alarm = watched->alarm;
        int is_usual = alarm != NULL && alarm->low <= iteration->loss && iteration->loss <= alarm->high;
        if ((watch->is_due || !is_usual)
            && done(PyObject_CallMethodObjArgs(python, state->sample, watched, iteration, NULL)) < 0)
            goto out;
    }
    if (is_some(watch->errand)) {
        PyObject *errand = Py_NewRef(watch->errand);
        PyObject *done_ = PyObject_CallOneArg(errand, optimizer);
        Py_DECREF(errand);
        if (done(done_) < 0)
            goto out;
    }
    if (is_some(iteration->pending)) {
        PyObject *pending = Py_NewRef(iteration->pending);
        PyObject *marked = PyObject_CallMethodOneArg(pending, state->mark, self->mark);
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
    PyObject *groups = PyObject_GetAttr(optimizer, state->param_groups), *value = NULL;
    if (groups == NULL)
        return -1;
    if (PyList_CheckExact(groups) && PyList_GET_SIZE(groups) && PyDict_CheckExact(PyList_GET_ITEM(groups, 0))) {
        value = PyDict_GetItemWithError(PyList_GET_ITEM(groups, 0), state->lr);
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
            value = group ? PyObject_CallMethodOneArg(group, state->get, state->lr) : NULL;
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
        result = double_of(PyObject_CallMethodOneArg((PyObject *)self->watch, state->number_of, value), rate);
    Py_DECREF(value);
    return result;
}

/* Write the row: into the ring at once, or through the stand-in for its writer that waits for a device. */
static int
put_row(Callback *self, Iteration *iteration, PyObject *put, const int64_t *words)
{
    if (is_some(iteration->pending)) {
        PyObject *later = PyObject_CallMethodObjArgs((PyObject *)self->watch, self->state->put_later, iteration, put, NULL);
        if (later == NULL)
            return -1;
        put = later;
    }
    else
        Py_INCREF(put);
    int result = 0;
    Slots *slots = put == self->watch->put ? self->watch->slots : slots_written_by(put);
    if (slots != NULL)
        result = put_words(slots, words, STEP_WORDS) < 0 ? -1 : 0;
    else if (put != Py_None) {
        PyObject *values[STEP_WORDS];
        int count = 0;
        for (; count < STEP_WORDS; count++) {
            double number;
            memcpy(&number, words + count, 8);
            values[count] = STEP_KINDS[count] == 'd' ? PyFloat_FromDouble(number) : PyLong_FromLongLong(words[count]);
            if (values[count] == NULL)
                break;
        }
        result = count < STEP_WORDS ? -1 : done(PyObject_Vectorcall(put, values, STEP_WORDS, NULL));
        while (count > 0)
            Py_DECREF(values[--count]);
    }
    Py_DECREF(put);
    return result;
}

static int
end_step(Callback *self, PyObject *optimizer)
{
    State *state = self->state;
    Watch *watch = self->watch;
    Session *session = self->session;
    PyObject *python = (PyObject *)watch;
    int64_t now = now_ns();
    Iteration *iteration = iteration_of(self);
    if (iteration == NULL)
        return -1;
    int result = -1;
    PyObject *put = NULL, *turn = NULL;
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
        if (done(PyObject_CallMethodObjArgs(python, state->sample, watched, iteration, NULL)) < 0)
            goto out;
        iteration->spent_ns -= now_ns() - began_ns;
    }
    int64_t step = iteration->step;
    iteration->step = -1;
    if (step >= session->steps)
        session->steps = step + 1;
    if (session->ring == watch->ring && watch->put != NULL)
        put = Py_NewRef(watch->put);
    else if ((put = PyObject_CallMethodNoArgs(python, state->reopen)) == NULL)
        goto out;
    double rate = 0;
    if (rate_of(self, optimizer, &rate) < 0)
        goto out;
    int64_t backwards = iteration->backwards;
    if (backwards == watched->backwards) { /* none since its last step: the loss is an older one */
        const int64_t null = NULL_BITS;
        memcpy(&iteration->loss, &null, 8);
    }
    watched->backwards = backwards;
    if (PyContextVar_Get(self->turn, NULL, &turn) < 0 || turn == NULL || !PyTuple_Check(turn) || PyTuple_GET_SIZE(turn) != 3)
        goto out;
    if (turn != watched->turn && done(PyObject_CallMethodOneArg((PyObject *)watched, state->take_turn, turn)) < 0)
        goto out;
    if (PyTuple_GET_ITEM(turn, 2) != Py_None) {
        PyObject *loss = PyFloat_FromDouble(iteration->loss), *samples = PyLong_FromLongLong(iteration->samples);
        PyObject *added = NULL;
        if (loss != NULL && samples != NULL)
            added = PyObject_CallMethodObjArgs(PyTuple_GET_ITEM(turn, 2), state->add, loss, samples, NULL);
        Py_XDECREF(loss);
        Py_XDECREF(samples);
        if (done(added) < 0)
            goto out;
    }
    int64_t words[STEP_WORDS] = {
        watched->table_client, watched->round_optimizer, step, now + session->offset_ns, watched->local_step_model,
        bits_of(iteration->loss), bits_of(rate), bits_of(iteration->norm), bits_of((double)(now - iteration->last_end_ns)),
        bits_of((double)iteration->data_ns), bits_of((double)iteration->forward_ns), bits_of((double)iteration->backward_ns),
        bits_of((double)(now - iteration->optimizer_start_ns)),
        (int64_t)((uint64_t)(backwards - iteration->backwards_before) << 32) + iteration->samples, iteration->skipped,
        watched->allocated_bytes, watch->peak_bytes,
    };
    watched->local_step_model += 1;
    if (put_row(self, iteration, put, words) < 0)
        goto out;
    if (now > iteration->house_ns) {
        PyObject *numbers[2] = {PyLong_FromLongLong(step), PyLong_FromLongLong(now)}, *kept = NULL;
        if (numbers[0] != NULL && numbers[1] != NULL)
            kept = PyObject_CallMethodObjArgs(python, state->keep_house, iteration, watched, numbers[0], numbers[1], NULL);
        Py_XDECREF(numbers[0]);
        Py_XDECREF(numbers[1]);
        if (done(kept) < 0)
            goto out;
    }
    const int64_t null = NULL_BITS;
    memcpy(&iteration->norm, &null, 8);
    iteration->backwards_before = backwards;
    iteration->skipped = iteration->samples = iteration->closure_backwards = 0;
    iteration->data_ns = iteration->forward_ns = iteration->backward_ns = 0;
    iteration->completed += 1;
    iteration->last_end_ns = now;
    int64_t end = now_ns();
    iteration->mark_ns = end;
    iteration->spent_ns += end - now;
    result = 0;
out:
    if (result < 0 && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "whose turn is it");
    Py_XDECREF(turn);
    Py_XDECREF(put);
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
    else if (Py_IS_TYPE(op, self->state->step_begins))
        is_done = begin_step(self, args[0], args[1], args[2]);
    else
        is_done = end_step(self, args[0]);
    if (is_done < 0 && settle(self, "steps") < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* What the callbacks are as objects */

static int
Callback_traverse(Callback *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->module);
    Py_VISIT(self->watch);
    Py_VISIT(self->local);
    Py_VISIT(self->session);
    Py_VISIT(self->original);
    Py_VISIT(self->is_training);
    Py_VISIT(self->modes);
    Py_VISIT(self->item);
    Py_VISIT(self->is_cpu);
    Py_VISIT(self->is_neg);
    Py_VISIT(self->turn);
    Py_VISIT(self->mark);
    Py_VISIT(self->tensor);
    Py_VISIT(self->note_begin);
    Py_VISIT(self->note_end);
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
    Py_XDECREF(self->original);
    Py_XDECREF(self->is_training);
    Py_XDECREF(self->modes);
    Py_XDECREF(self->item);
    Py_XDECREF(self->is_cpu);
    Py_XDECREF(self->is_neg);
    Py_XDECREF(self->turn);
    Py_XDECREF(self->mark);
    Py_XDECREF(self->tensor);
    Py_XDECREF(self->note_begin);
    Py_XDECREF(self->note_end);
    Py_XDECREF(self->dict);
    Py_XDECREF(self->module);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
Callback_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"watch", "local", "session", "original", "tensor", "tensor_base", "is_training", "modes",
                            "item", "is_cpu", "is_neg", "exchange", "turn", "mark", "note_begin", "note_end", NULL};
    PyObject *watch, *local, *session, *original, *tensor, *base, *is_training, *modes, *item, *is_cpu, *is_neg, *exchange,
        *turn, *mark, *begin, *end;
    State *state = PyType_GetModuleState(type);
    if (state == NULL
        || !PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!OO!O!OOOOOOOOOO", names, state->watch, &watch,
                                        state->iterations, &local, state->session, &session, &original, &PyType_Type,
                                        &tensor, &PyType_Type, &base, &is_training, &modes, &item, &is_cpu, &is_neg,
                                        &exchange, &turn, &mark, &begin, &end))
        return NULL;
    if (!PyContextVar_CheckExact(turn) || Py_TYPE(is_cpu)->tp_descr_get == NULL) {
        PyErr_SetString(PyExc_TypeError, "no context variable, or no attribute of a tensor");
        return NULL;
    }
    const Exchange *api = exchange == Py_None ? NULL : PyCapsule_GetPointer(exchange, EXCHANGE);
    if (api == NULL && exchange != Py_None)
        return NULL;
    Callback *self = (Callback *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->describe = api != NULL && api->version.major == EXCHANGE_MAJOR ? api->describe : NULL;
    self->module = Py_NewRef(PyType_GetModule(type));
    self->state = state;
    self->call = type == state->next_batch ? next_batch : type == state->backward ? backward : step_hook;
    self->watch = (Watch *)Py_NewRef(watch);
    self->local = (Iterations *)Py_NewRef(local);
    self->session = (Session *)Py_NewRef(session);
    self->original = Py_NewRef(original);
    self->tensor = (PyTypeObject *)Py_NewRef(tensor);
    PyMappingMethods *mapping = ((PyTypeObject *)base)->tp_as_mapping;
    self->length = mapping && PyType_IsSubtype((PyTypeObject *)tensor, (PyTypeObject *)base) ? mapping->mp_length : NULL;
    self->is_training = Py_NewRef(is_training);
    self->modes = Py_NewRef(modes);
    self->item = Py_NewRef(item);
    self->is_cpu = Py_NewRef(is_cpu);
    self->is_neg = Py_NewRef(is_neg);
    self->turn = Py_NewRef(turn);
    self->mark = Py_NewRef(mark);
    self->note_begin = Py_NewRef(begin);
    self->note_end = Py_NewRef(end);
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
    return PyObject_GetAttr(self, ((Callback *)self)->state->qualname);
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

/* Checksums, for the drainer ------------------------------------------------------------------------------------- */

#ifdef HAS_FOLD
/* What has the same CRC-32 as a long buffer: 16 bytes and up to 63 more. Multiplying by x^n modulo the polynomial, without
 * carries, moves a part of a message n bits on: four strands of 128 bits are folded onto the next 512, and in the end
 * onto each other. The constants are those powers for the reflected polynomial of zlib's crc32. */
__attribute__((target("pclmul,sse4.1"))) static inline __m128i
folded(__m128i strand, __m128i powers, __m128i onto)
{
    __m128i low = _mm_clmulepi64_si128(strand, powers, 0x00), high = _mm_clmulepi64_si128(strand, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

__attribute__((target("pclmul,sse4.1"))) static size_t
fold_bytes(const unsigned char *from, size_t length, unsigned char *to)
{
    const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i strands[4];
    for (int at = 0; at < 4; at++)
        strands[at] = _mm_loadu_si128((const __m128i *)(from + 16 * at));
    strands[0] = _mm_xor_si128(strands[0], _mm_cvtsi32_si128(-1)); /* what a CRC begins with */
    for (from += 64, length -= 64; length >= 64; from += 64, length -= 64)
        for (int at = 0; at < 4; at++)
            strands[at] = folded(strands[at], by_512, _mm_loadu_si128((const __m128i *)(from + 16 * at)));
    for (int at = 1; at < 4; at++)
        strands[at] = folded(strands[at - 1], by_128, strands[at]);
    _mm_storeu_si128((__m128i *)to, strands[3]);
    memcpy(to + 16, from, length);
    return 16 + length;
}

static PyObject *
fold(PyObject *Py_UNUSED(module), PyObject *from)
{
    Py_buffer view;
    unsigned char folded_bytes[16 + 64];
    if (PyObject_GetBuffer(from, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = NULL;
    if (view.len < 64)
        PyErr_SetString(PyExc_ValueError, "too short to fold");
    else {
        size_t length = fold_bytes(view.buf, (size_t)view.len, folded_bytes);
        result = PyBytes_FromStringAndSize((char *)folded_bytes, (Py_ssize_t)length);
    }
    PyBuffer_Release(&view);
    return result;
}

static PyMethodDef fold_method[] = {
    {"fold", fold, METH_O, "fold(buffer): a few bytes with which `zlib.crc32(_, 0xFFFFFFFF)` gives the CRC-32 of the buffer."},
    {NULL},
};
#endif

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
    struct { PyObject **where; const char *text; } names[] = {
        {&state->lr, "lr"}, {&state->param_groups, "param_groups"}, {&state->num_yielded, "_num_yielded"},
        {&state->get, "get"}, {&state->iteration_, "iteration"}, {&state->failed, "failed"}, {&state->beat, "beat"},
        {&state->samples_in, "samples_in"}, {&state->batch_came, "batch_came"}, {&state->odd_loss, "odd_loss"},
        {&state->add_loss, "add_loss"}, {&state->backward_ended, "backward_ended"}, {&state->tracer, "tracer"},
        {&state->backward_begins, "backward_begins"}, {&state->numel, "numel"}, {&state->is_complex, "is_complex"}, {&state->run, "run"},
        {&state->guard, "guard"}, {&state->is_inside, "is_inside"}, {&state->enter, "enter"},
        {&state->has_closure, "has_closure"}, {&state->sample, "sample"}, {&state->mark, "mark"},
        {&state->reopen, "reopen"}, {&state->number_of, "number_of"}, {&state->take_turn, "take_turn"},
        {&state->add, "add"}, {&state->put_later, "put_later"}, {&state->keep_house, "keep_house"},
        {&state->tensors, "tensors"}, {&state->grad_tensors, "grad_tensors"}, {&state->qualname, "__qualname__"},
    };
    for (size_t at = 0; at < sizeof names / sizeof *names; at++)
        if ((*names[at].where = PyUnicode_InternFromString(names[at].text)) == NULL)
            return -1;
    if (add_type(module, &Slots_spec, &state->slots, "Slots") < 0 || add_type(module, &Writer_spec, NULL, "Writer") < 0
        || add_type(module, &Alarm_spec, &state->alarm, "AlarmFields") < 0
        || add_type(module, &Watched_spec, &state->watched, "WatchedFields") < 0
        || add_type(module, &Iteration_spec, &state->iteration, "IterationFields") < 0
        || add_type(module, &Iterations_spec, &state->iterations, "IterationsFields") < 0
        || add_type(module, &Session_spec, &state->session, "SessionFields") < 0
        || add_type(module, &Watch_spec, &state->watch, "WatchFields") < 0
        || add_type(module, &NextBatch_spec, &state->next_batch, "NextBatch") < 0
        || add_type(module, &Backward_spec, &state->backward, "Backward") < 0
        || add_type(module, &StepBegins_spec, &state->step_begins, "StepBegins") < 0
        || add_type(module, &StepEnded_spec, &state->step_ended, "StepEnded") < 0)
        return -1;
#ifdef HAS_FOLD
    __builtin_cpu_init();
    if (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")
        && PyModule_AddFunctions(module, fold_method) < 0)
        return -1;
#endif
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static int
hot_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    for (PyTypeObject **type = &state->slots; type <= &state->step_ended; type++)
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
    for (PyTypeObject **type = &state->slots; type <= &state->step_ended; type++)
        Py_CLEAR(*type);
    for (PyObject **name = &state->lr; name <= &state->qualname; name++)
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
