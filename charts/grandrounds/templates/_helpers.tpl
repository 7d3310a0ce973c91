{{- define "grandrounds.labels" -}}
app.kubernetes.io/name: grandrounds
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "grandrounds.metadata" -}}
name: {{ printf "%s-%s" .root.Release.Name .part | trunc 52 | trimSuffix "-" }}
labels:
  {{- include "grandrounds.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "grandrounds.name" -}}
{{ printf "%s-%s" .root.Release.Name .part | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- /* Claim of a part: one that exists, or the one of this chart. */}}
{{- define "grandrounds.claim" -}}
{{ (index .root.Values .part).storage.existingClaim | default (include "grandrounds.name" .) }}
{{- end }}

{{- /* The part of a pod that all have: no token of the cluster, an ordinary user, the default system-call filter. */}}
{{- define "grandrounds.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- with .root.Values.user.runAsUser }}
  runAsUser: {{ . }}
  {{- end }}
  {{- with .root.Values.user.runAsGroup }}
  runAsGroup: {{ . }}
  {{- end }}
  {{- with .root.Values.user.fsGroup }}
  fsGroup: {{ . }}
  {{- end }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index .root.Values .part).nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index .root.Values .part).tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The part of a container that all have: read-only root file system, no capabilities. */}}
{{- define "grandrounds.container" -}}
image: {{ printf "%s/grandrounds-%s:%s" .root.Values.image.registry .part (.root.Values.image.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* Probes of a health page, which is on the pod's loopback. A program that reports a problem is not ready, but a restart
       would not help; one that does not answer is restarted. */}}
{{- define "grandrounds.probes" -}}
startupProbe:
  exec: {command: {{ concat (list "health" "--alive") .words | toJson }}}
  periodSeconds: 5
  timeoutSeconds: 10
  failureThreshold: 60
livenessProbe:
  exec: {command: {{ concat (list "health" "--alive") .words | toJson }}}
  periodSeconds: 30
  timeoutSeconds: 10
readinessProbe:
  exec: {command: {{ concat (list "health") .words | toJson }}}
  periodSeconds: 30
  timeoutSeconds: 10
{{- end }}

{{- /* Unpacks the Secret with a folder into its volume. An archive with state is refused: an older site budget would be spent
       twice. */}}
{{- define "grandrounds.unpack" -}}
- name: folder
  {{- include "grandrounds.container" . | nindent 2 }}
  command:
    - sh
    - -euc
    - |
      umask 077
      if tar -tzf /archive/folder.tgz | grep -qE '^(\./)?(state|runs)/.'; then
        echo "folder.tgz contains state or runs: leave them out, since an older state would be restored" >&2
        exit 1
      fi
      if [ "$OVERWRITE" = false ] && [ -e "$FOLDER/$MARK" ]; then
        echo "$FOLDER is there: it stays as it is"
      else
        tar -xzf /archive/folder.tgz -C "$FOLDER" --no-same-owner --no-same-permissions --no-overwrite-dir
      fi
      mkdir -p "$FOLDER/state"
  env:
    - {name: FOLDER, value: {{ .folder }}}
    - {name: MARK, value: {{ .mark }}}
    - {name: OVERWRITE, value: {{ (index .root.Values .part).folder.overwrite | quote }}}
  resources:
    requests: {cpu: 50m, memory: 64Mi}
    limits: {memory: 128Mi}
  volumeMounts:
    - {name: folder, mountPath: {{ .folder }}}
    - {name: archive, mountPath: /archive, readOnly: true}
    - {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "grandrounds.volumes" -}}
- name: folder
  persistentVolumeClaim: {claimName: {{ include "grandrounds.claim" . }}}
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: 256Mi}
{{- end }}

{{- define "grandrounds.archive" -}}
- name: archive
  secret:
    secretName: {{ required (printf "%s.folder.existingSecret: name the Secret with folder.tgz" .part) (index .root.Values .part).folder.existingSecret }}
    defaultMode: 0440
    items: [{key: folder.tgz, path: folder.tgz}]
{{- end }}

{{- /* The claim of a part. `helm uninstall` leaves it: it has runs, or the site budget. */}}
{{- define "grandrounds.newClaim" -}}
{{- with (index .root.Values .part).storage }}
{{- if not .existingClaim }}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  {{- include "grandrounds.metadata" $ | nindent 2 }}
  annotations: {helm.sh/resource-policy: keep}
spec:
  accessModes: [ReadWriteOnce]
  {{- if .storageClassName }}
  storageClassName: {{ .storageClassName | quote }}
  {{- end }}
  resources: {requests: {storage: {{ .size }}}}
{{- end }}
{{- end }}
{{- end }}

{{- define "grandrounds.dns" -}}
- ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]
{{- end }}
