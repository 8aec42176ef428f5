{{/* Name of everything that the chart makes; two releases in one namespace do not collide. */}}
{{- define "shardherd.name" -}}
{{- $base := .Values.nameOverride | default "shardherd" -}}
{{- if .Values.fullnameOverride -}}{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if eq .Release.Name $base -}}{{ $base | trunc 50 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-%s" .Release.Name $base | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{/* The Secret that the operators serve from. */}}
{{- define "shardherd.tlsSecret" -}}
{{- .Values.tls.secretName | default (printf "%s-tls" (include "shardherd.name" .)) -}}
{{- end -}}

{{/* What a monitor shows operators and drivers. Prometheus reads the Secret in the monitor's namespace. */}}
{{- define "shardherd.scrapes" -}}
{{- with .Values.metrics.tokenSecret -}}
authorization:
  type: Bearer
  credentials: {name: {{ . }}, key: token}
{{- end }}
{{- end -}}

{{/* Where consumers call. */}}
{{- define "shardherd.url" -}}
{{- $host := printf "%s.%s.svc" (include "shardherd.name" .) .Release.Namespace -}}
{{- if eq .Values.tls.mode "disabled" -}}http://{{ $host }}:{{ .Values.api.port }}
{{- else -}}https://{{ $host }}:{{ .Values.tls.port }}
{{- end -}}
{{- end -}}

{{/* What the operator's container listens on, as a YAML list. Two on one port would end it as it starts. */}}
{{- define "shardherd.ports" -}}
{{- $ports := list (list "api" "api" .Values.api.port) -}}
{{- if ne .Values.tls.mode "disabled" }}{{ $ports = append $ports (list "api-tls" "tls" .Values.tls.port) }}{{ end -}}
{{- $ports = append $ports (list "metrics" "metrics" .Values.metrics.port) -}}
{{- if .Values.page.enabled }}{{ $ports = append $ports (list "page" "page" .Values.page.port) }}{{ end -}}
{{- $taken := dict -}}
{{- range $each := $ports -}}
{{- $number := last $each | int | toString -}}
{{- with get $taken $number }}{{ fail (printf "%s.port and %s.port are both %s: give each a port of its own" . (index $each 1) $number) }}{{ end -}}
{{- $_ := set $taken $number (index $each 1) }}
- name: {{ first $each }}
  containerPort: {{ last $each }}
{{- end -}}
{{- end -}}

{{/* Whether the API is served over plain HTTP. The port is there in any case: probes and `kubectl port-forward` use it. */}}
{{- define "shardherd.plain" -}}
{{- if or (eq .Values.tls.mode "disabled") .Values.tls.acceptPlain -}}true{{- end -}}
{{- end -}}

{{- define "shardherd.account" -}}
{{- .Values.serviceAccount.name | default (include "shardherd.name" .) -}}
{{- end -}}

{{- define "shardherd.image" -}}
{{- required "image.repository is not set, and no image is published: push the operator's image to a registry of yours, and name it (--set image.repository=registry.example.com/shardherd/operator)" .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- define "shardherd.selector" -}}
app.kubernetes.io/name: shardherd
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "shardherd.labels" -}}
{{ include "shardherd.selector" . }}
{{ include "shardherd.commonLabels" . }}
{{- end -}}

{{/* Labels of what is no part of the operator's own pods: their selector must not match it. */}}
{{- define "shardherd.otherLabels" -}}
app.kubernetes.io/name: shardherd
app.kubernetes.io/instance: {{ .Release.Name }}
{{ include "shardherd.commonLabels" . }}
{{- end -}}

{{- define "shardherd.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels or annotations from several places, each once: of those of one name the last counts. */}}
{{- define "shardherd.joined" -}}
{{- $all := dict -}}
{{- range . }}{{ range $name, $value := . }}{{ $_ := set $all $name $value }}{{ end }}{{ end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* Where applications have their accounts, as a YAML list: not beside the operator, unless that is asked for. */}}
{{- define "shardherd.applicationNamespaces" -}}
{{- toYaml (.Values.applicationNamespaces | default (without (.Values.watchNamespaces | default list) .Release.Namespace)) -}}
{{- end -}}

{{/* By which labels namespaces are chosen, as a label selector; empty if they are not. */}}
{{- define "shardherd.namespaceSelector" -}}
{{- $selector := .Values.watchNamespaceSelector | default dict -}}
{{- $chosen := dict -}}
{{- with $selector.matchLabels }}{{ $_ := set $chosen "matchLabels" . }}{{ end -}}
{{- with $selector.matchExpressions }}{{ $_ := set $chosen "matchExpressions" . }}{{ end -}}
{{- if $chosen -}}
{{- if .Values.watchNamespaces }}{{ fail "watchNamespaceSelector chooses namespaces by their labels: leave watchNamespaces empty, or name in it those to serve and leave the selector empty" }}{{ end -}}
{{- if .Values.watchAllNamespaces }}{{ fail "watchAllNamespaces=true serves all namespaces: set it to false to have watchNamespaceSelector choose among them, or leave the selector empty" }}{{ end -}}
{{- if not .Values.rbac.clusterRoles }}{{ fail "watchNamespaceSelector needs a ClusterRole, as a namespace may get its label at any time: set rbac.clusterRoles=true, or name the namespaces to serve in watchNamespaces and leave the selector empty" }}{{ end -}}
{{- toYaml $chosen -}}
{{- end -}}
{{- end -}}

{{/* The same as a text, as kubectl takes it. */}}
{{- define "shardherd.namespaceSelectorText" -}}
{{- $chosen := include "shardherd.namespaceSelector" . | fromYaml -}}
{{- $parts := list -}}
{{- range $key, $value := $chosen.matchLabels }}{{ $parts = append $parts (printf "%s=%s" $key $value) }}{{ end -}}
{{- range $chosen.matchExpressions -}}
{{- if eq .operator "Exists" }}{{ $parts = append $parts .key -}}
{{- else if eq .operator "DoesNotExist" }}{{ $parts = append $parts (printf "!%s" .key) -}}
{{- else }}{{ $parts = append $parts (printf "%s %s (%s)" .key (lower .operator) (join "," .values)) }}{{ end -}}
{{- end -}}
{{- join "," $parts -}}
{{- end -}}

{{/* Whose groups are served, as a YAML list; empty for all, or those that the selector chooses. */}}
{{- define "shardherd.servedNamespaces" -}}
{{- if or .Values.watchAllNamespaces (include "shardherd.namespaceSelector" .) -}}[]
{{- else -}}{{ toYaml (.Values.watchNamespaces | default .Values.applicationNamespaces | default (list .Release.Namespace)) }}
{{- end -}}
{{- end -}}

{{/* What the operator may do with groups, in every namespace that it serves. Each rule names what needs it. */}}
{{- define "shardherd.rules" -}}
# The groups, and their status. Owner references with blockOwnerDeletion need the right to set finalizers.
- apiGroups: [shardherd.dev]
  resources: [consumergroups]
  verbs: [get, list, watch]
- apiGroups: [shardherd.dev]
  resources: [consumergroups/status]
  verbs: [get, patch]
- apiGroups: [shardherd.dev]
  resources: [consumergroups/finalizers]
  verbs: [update]
# A group's objects, written by server-side apply.
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
# Proof of death, why a consumer does not start, replacing expired consumers, executors whose driver died.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# Who holds which shard.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, update, delete]
{{- if ne .Values.tls.mode "disabled" }}
# The authorities by which consumers believe the operator: one ConfigMap in each namespace, written by server-side apply.
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [shardherd-ca]
  verbs: [patch]
{{- end }}
{{- if .Values.kafkaCredentials.enabled }}
# Kafka credentials that a group names. The operator uses a Secret only if it has the label shardherd.dev/kafka-credentials.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
# Why a StatefulSet cannot make pods; what happened to a group.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
{{- if not .Values.rbac.clusterRoles }}
# Whether the account of a token that was checked against the published keys is still there.
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get]
{{- end }}
# Whether a caller that is no consumer may look at checkpoints or set them.
- apiGroups: [authorization.k8s.io]
  resources: [localsubjectaccessreviews]
  verbs: [create]
{{- end -}}

{{/* The port that traces are sent to. */}}
{{- define "shardherd.collectorPort" -}}
{{- $url := urlParse .Values.tracing.endpoint -}}
{{- regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (eq $url.scheme "https" | ternary "443" "80") -}}
{{- end }}
