"""Every error the package raises on purpose; each message is one line that says what to do."""


class AtofferError(Exception):
    """Base of all errors that a user can cause or mend."""


class WorkloadError(AtofferError):
    """A workload's numbers or names do not make a layer."""


class MaskError(WorkloadError):
    """A mask's name, parameters or file are wrong."""


class SchemeError(AtofferError):
    """A scheme does not cover the layer, or is illegal for its workload."""


class NoTemplate(AtofferError):
    """No template implements a run, or any partition of the workload."""


class CompileError(AtofferError):
    """The compiler refused a rendered kernel."""


class LaunchError(AtofferError):
    """A kernel or library call could not be launched."""


class DisturbedTiming(LaunchError):
    """Other work on the GPU left nothing to be told."""


class MemoryTaken(LaunchError):
    """Other processes took GPU memory that this one was promised."""


class DeviceUnavailable(AtofferError):
    """Live measurement was asked for where there is no usable GPU, or its processes cannot be started."""


class NotRecorded(AtofferError):
    """A replayed table does not hold what was asked."""


class BudgetSpent(AtofferError):
    """A measurement was asked for after the budget was spent."""


class StoreError(AtofferError):
    """Trials, a table or a device in a file are damaged, locked, or not of this protocol."""


class PolicyError(AtofferError):
    """A checkpoint or policy is damaged, or was made for another space."""


class ExportError(AtofferError):
    """An export folder is incomplete, damaged or does not verify."""


class FileError(AtofferError):
    """A file or folder is not such as may be used: no regular one, too large, or open to others."""


class LogError(AtofferError):
    """A log folder, or another file that was asked for, cannot be written."""
