/* The functions that module.c registers for gristmill.video. They are defined in video/shots/kernel_reference.py and video/motion/kernel_reference.py. */

#ifndef GRISTMILL_FRAMES_H
#define GRISTMILL_FRAMES_H

#include "text.h"

PyObject *hsv_changes(PyObject *self, PyObject *args);
PyObject *block_motion(PyObject *self, PyObject *args);

#endif
