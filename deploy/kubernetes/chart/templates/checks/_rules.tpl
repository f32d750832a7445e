{{- /* The names of values, and of those below a value. Helm's own refusal lists no names. */}}
{{- define "weft.known" }}
"": "global image imagePullSecrets resource shares shareMiB severalGpus gpus containerEnv dra cdi
  runtimeClassName folders broker plugin policy podMonitor dashboard priorityClassName nodeSelector
  affinity tolerations podAnnotations"
broker: settings priorities weights jobs memory metricsPort metricsHost podLabels resources
broker.settings: policy slowdown delay-bound longest-wait max-swapped-out swapped-out-limit
  checkpoint switch-cost idle-exit trace group log
cdi: enabled folder
dashboard: enabled labels annotations
dra: enabled className parameters
dra.parameters: priority slowdown slo profile backing outcome
folders: weft socket state kubelet containerLogs
image: repository tag pullPolicy
plugin: resources
podMonitor: enabled interval labels
policy: enabled highPriorityClasses
{{- end }}

{{- /* The rules for texts: a pattern, and what a refusal asks for. */}}
{{- define "weft.rules" }}
amount:
  is: '^([1-9][0-9]{0,7}([.][0-9]+)?[KkMm]|(0[.][0-9]?[1-9]|[1-9][0-9]{0,4}([.][0-9]+)?)[Gg]|(0[.][0-9]?[1-9]|([1-9][0-9]?|[1-8][0-9]{2}|90[0-8])([.][0-9]+)?)[Tt])[Ii]?[Bb]?$'
  wants: an amount of memory such as 24GiB
backing: { is: '^(device|managed|auto|movable)$', wants: 'one of device, managed, auto, movable' }
class:
  is: '^[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*$'
  wants: 'a name of Kubernetes: small letters, digits, - and ., such as gpu-jobs'
duration: { is: '^(short|medium|long)$', wants: 'one of short, medium, long' }
gpu:
  is: '^(GPU-)?[0-9A-Fa-f]{8}(-?[0-9A-Fa-f]{4}){3}-?[0-9A-Fa-f]{12}(=(/dev/)?[A-Za-z0-9_-]+)?$'
  wants: 'the UUID of a GPU as nvidia-smi -L prints it, with =nvidia0 after it if its device node is known'
interval: { is: '^[1-9][0-9]*(ms|s|m|h)$', wants: a time such as 15s }
key:
  is: '^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$'
  wants: 'a name of a label: letters, digits and -_. with a domain and a / before them if it has one'
label:
  is: '^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$'
  wants: 'the value of a label: at most 63 letters, digits and -_.'
log: { is: '^(off|error|warn|info|debug|trace)$', wants: 'one of off, error, warn, info, debug, trace' }
mode: { is: '^(serve|profile|trace|off)$', wants: 'one of serve, profile, trace, off' }
outcome: { is: '^(on|off|true|false)$', wants: on or off }
part:
  is: '^(0|0?[.][0-9]+|[0-9]{1,2}([.][0-9]+)? ?%|100([.]0+)? ?%)$'
  wants: a part such as 2% or 0.02, from 0 to 100%
path:
  is: '^(/[.]?[A-Za-z0-9_+@=-][A-Za-z0-9._+@=-]*)+$'
  wants: 'an absolute path of letters, digits and ._+@=- without a / at its end, such as /opt/weft'
priority:
  is: '^([0-9]|[Hh]igh|[Nn]ormal|[Ll]ow|[Ii]dle|HIGH|NORMAL|LOW|IDLE)$'
  wants: 'a priority: 0 (matters most) to 9, or a name: high, normal, low, idle'
profile: { is: '^[^[:cntrl:]]+$', wants: 'a name of a profile, or a file in the container' }
quantity:
  is: '^[0-9]*[.]?[0-9]+(m|[kKMGTPE]i?|[eE][0-9]+)?$'
  wants: a quantity of Kubernetes such as 100m or 64Mi
queue: { is: '^(on|off|0|always)$', wants: 'one of on, off, always' }
repository:
  is: '^([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$'
  wants: 'an image without scheme, tag and digest, such as registry.example/weft: a tag goes into image.tag'
resource:
  is: '^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$'
  wants: 'a DOMAIN/NAME such as weft.dev/gpu-share'
slo:
  is: '^([1-9][0-9]{0,8}([.][0-9]+)?us|(0[.]0{0,2}[1-9][0-9]*|[1-9][0-9]{0,5}([.][0-9]+)?)ms|(0[.]0{0,5}[1-9][0-9]*|([1-9][0-9]{0,2}|[12][0-9]{3}|3[0-5][0-9]{2})([.][0-9]+)?|3600)s)$'
  wants: a time such as 50ms or 1.5s, from 1us to 3600s
switch: { is: '^(on|off)$', wants: on or off }
tag: { is: '^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$', wants: a tag such as 0.2.0 }
time:
  is: '^(0[.]0{0,2}[1-9][0-9]*|[1-9][0-9]{0,6}([.][0-9]+)?)(ms|s|m|min)?$|^[1-9][0-9]{0,4}h$'
  wants: a time such as 90s, 10m or 2h
user:
  is: '^(0|[1-9][0-9]{0,8}|[1-3][0-9]{9}|4[01][0-9]{8}|42[0-8][0-9]{7}|429[0-3][0-9]{6}|4294[0-8][0-9]{5})$'
  wants: 'the number of a user, as id -u prints it'
variable: { is: '^[A-Za-z_][A-Za-z0-9_]*$', wants: 'a name of a variable: letters, digits and _' }
wait: { is: '^(no|[0-9]{1,9})$', wants: 'a whole number of seconds, or no' }
{{- end }}

{{- /* The variables of a job, and their rules. */}}
{{- define "weft.variables" }}
WEFT_PRIORITY: priority
WEFT_SLOWDOWN: part
WEFT_AT_LEAST: part
WEFT_SLO: slo
WEFT_PROFILE: profile
WEFT_NAME: any
WEFT_MEMORY: amount
WEFT_DURATION: duration
WEFT_WAIT: wait
WEFT_USER: any
WEFT_QUEUE: queue
WEFT_BACKING: backing
WEFT_EVICT_IDLE: time
WEFT_LONGEST_EVICTED: time
WEFT_MODE: mode
WEFT_TRACE: any
WEFT_PROFILE_DIR: any
WEFT_CUDA_LIBRARY: any
WEFT_OUTCOME: switch
WEFT_LOG: log
WEFT_DEVICE_PRIORITIES: switch
{{- end }}
