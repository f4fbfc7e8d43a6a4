/* The functions that module.c registers for gristmill.audio. Defined in audio/transcripts/error_rates.py. */

#ifndef GRISTMILL_TRANSCRIPTS_H
#define GRISTMILL_TRANSCRIPTS_H

#include "text.h"

PyObject *word_distances(PyObject *self, PyObject *args);

#endif
