/* Attributes and methods of objects that are not native classes, for the C that mypyc makes (`scripts/compile.py`).
 *
 * mypyc looks them up as the C API does, at each access: a walk through the type's dictionaries, of about 150
 * instructions. The interpreter remembers at each access where the last one was (PEP 659), and so does this: a type that
 * is the same as last time, and was not changed since (its version tag), has the field or the method at the same place.
 * What is neither a field in a slot (`__slots__`, a structure of msgspec) nor a method of a type whose instances have no
 * dictionary is looked up as before.
 */
#ifndef WARMROUTE_SLOTS_H
#define WARMROUTE_SLOTS_H

#include <Python.h>
#include <CPy.h>

/* The places are written and read under the GIL, and what a version tag promises was tried on 3.11 alone. */
#if !defined(Py_GIL_DISABLED) && PY_VERSION_HEX < 0x030C0000

typedef struct {
    PyTypeObject *type; /* compared, never followed: it may be gone */
    PyObject *name;     /* owned; another one comes where the code says `getattr` */
    unsigned int version; /* unique to a type and its state; 0 is none */
    union {
        Py_ssize_t offset;
        PyObject *method; /* borrowed from the type, which holds it while the version is the same */
    };
} WrPlace;

#define WR_SLOW __attribute__((noinline, cold, unused))

static WR_SLOW void wr_remember(WrPlace *place, PyTypeObject *type, PyObject *name) {
    Py_XSETREF(place->name, Py_NewRef(name));
    place->type = type;
    place->version = type->tp_version_tag;
}

static WR_SLOW PyObject *wr_find_field(PyObject *object, PyObject *name, WrPlace *place) {
    PyTypeObject *type = Py_TYPE(object);
    if (type->tp_getattro == PyObject_GenericGetAttr) {
        PyObject *found = _PyType_Lookup(type, name);
        if (found != NULL && Py_IS_TYPE(found, &PyMemberDescr_Type)) {
            PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
            if (member->type == T_OBJECT_EX && (member->flags & ~READONLY) == 0 && type->tp_version_tag != 0 &&
                PyType_IsSubtype(type, ((PyDescrObject *)found)->d_type)) {
                wr_remember(place, type, name);
                place->offset = member->offset;
            }
        }
    }
    return PyObject_GetAttr(object, name);
}

static inline PyObject *wr_get_field(PyObject *object, PyObject *name, WrPlace *place) {
    PyTypeObject *type = Py_TYPE(object);
    if (likely(type == place->type && type->tp_version_tag == place->version && name == place->name)) {
        PyObject *value = *(PyObject **)((char *)object + place->offset);
        if (likely(value != NULL)) {
            return Py_NewRef(value);
        }
    }
    return wr_find_field(object, name, place);
}

static WR_SLOW PyObject *wr_find_method(PyObject *name, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                                        WrPlace *place) {
    PyTypeObject *type = Py_TYPE(args[0]);
    if (type->tp_getattro == PyObject_GenericGetAttr && type->tp_dictoffset == 0) {
        PyObject *found = _PyType_Lookup(type, name);
        if (found != NULL && PyType_HasFeature(Py_TYPE(found), Py_TPFLAGS_METHOD_DESCRIPTOR) &&
            type->tp_version_tag != 0) {
            wr_remember(place, type, name);
            place->method = found;
        }
    }
    return PyObject_VectorcallMethod(name, args, nargsf, kwnames);
}

static inline PyObject *wr_call_method(PyObject *name, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                                       WrPlace *place) {
    PyTypeObject *type = Py_TYPE(args[0]);
    if (likely(type == place->type && type->tp_version_tag == place->version && name == place->name)) {
        PyObject *method = Py_NewRef(place->method); /* the call may change the type */
        PyObject *result = PyObject_Vectorcall(method, args, nargsf & ~PY_VECTORCALL_ARGUMENTS_OFFSET, kwnames);
        Py_DECREF(method);
        return result;
    }
    return wr_find_method(name, args, nargsf, kwnames, place);
}

/* A place of its own for each access. */
#undef CPyObject_GetAttr
#define CPyObject_GetAttr(object, name)              \
    __extension__({                                  \
        static WrPlace wr_place;                     \
        wr_get_field((object), (name), &wr_place);   \
    })
#define PyObject_VectorcallMethod(name, args, nargsf, kwnames)                \
    __extension__({                                                           \
        static WrPlace wr_place;                                              \
        wr_call_method((name), (args), (nargsf), (kwnames), &wr_place);       \
    })

#endif
#endif
